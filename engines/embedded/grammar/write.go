package grammar

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxGroups is the maximum nesting of groups in a written rule. A more deeply nested group becomes
// a rule.
const maxGroups = 8

// GBNF returns a grammar in GBNF that accepts the same texts as g. It returns "" if that grammar is
// too large or left-recursive, so that Parse would reject it. The result is cached.
func (g *Grammar) GBNF() string {
	g.write.Do(func() { g.gbnf = g.text() })
	return g.gbnf
}

func (g *Grammar) text() string {
	w := &writer{nodes: g.nodes, names: map[int32]string{g.start: "root"}, uses: map[int32]int{}}
	w.count(g.start)
	var out strings.Builder
	for i := 0; i < len(w.rules) && out.Len() <= maxSource; i++ {
		out.WriteString(w.names[w.rules[i]] + " ::= " + w.alternatives(w.rules[i], 0) + "\n")
	}
	if w.failed || out.Len() > maxSource {
		return ""
	}
	if _, err := parse(out.String()); err != nil {
		return ""
	}
	return out.String()
}

// A writer writes nodes as rules in GBNF. A node to which several others refer, and the body of a
// call, become rules. Any other node is written where it is referred to.
type writer struct {
	nodes  []node
	names  map[int32]string
	rules  []int32 // nodes that become rules, in the order in which they are written
	uses   map[int32]int
	failed bool
}

// A step is a terminal or group, and the node after it. literal is the text of a terminal that
// matches only that text.
type step struct {
	literal, text string
	next          int32
}

// name returns the name of the rule for a node, and creates the rule if necessary.
func (w *writer) name(n int32) string {
	if w.names[n] == "" {
		w.names[n] = "r" + strconv.Itoa(len(w.rules))
		w.rules = append(w.rules, n)
	}
	return w.names[n]
}

// count counts the references to all nodes that can be reached from start, and names the nodes that
// become rules.
func (w *writer) count(start int32) {
	w.rules = append(w.rules, start)
	pending, seen := []int32{start}, map[int32]bool{start: true}
	refer := func(to int32, rule bool) {
		if to == returns {
			return
		}
		if w.uses[to]++; rule || w.uses[to] > 1 {
			w.name(to)
		}
		if !seen[to] {
			seen[to] = true
			pending = append(pending, to)
		}
	}
	for len(pending) > 0 {
		n := &w.nodes[pending[len(pending)-1]]
		pending = pending[:len(pending)-1]
		switch n.op {
		case opBytes:
			for _, to := range w.characters(n) {
				refer(to.next, false)
			}
		case opSplit:
			for _, to := range n.split {
				refer(to, false)
			}
		case opCall, opRepeat:
			refer(n.body, n.op == opCall)
			refer(n.next, false)
		}
	}
}

// alternatives returns the body of the rule for a node. depth is the current nesting of groups.
func (w *writer) alternatives(n int32, depth int) string {
	steps := w.steps(n, depth)
	texts := make([]string, len(steps))
	for i, s := range steps {
		texts[i] = w.sequence(s, depth)
	}
	return strings.Join(texts, " | ")
}

// sequence returns the text of a step and of all that follows it up to the end of the rule.
func (w *writer) sequence(s step, depth int) string {
	var parts []string
	literal := ""
	flush := func() {
		if literal != "" {
			parts = append(parts, quote(literal))
			literal = ""
		}
	}
	for {
		literal += s.literal
		if s.text != "" {
			flush()
			parts = append(parts, s.text)
		}
		if s.next == returns {
			break
		}
		name, steps := w.names[s.next], []step(nil)
		if name == "" {
			if steps = w.steps(s.next, depth); len(steps) != 1 && depth >= maxGroups {
				name = w.name(s.next)
			}
		}
		if name != "" {
			flush()
			parts = append(parts, name)
			break
		}
		if len(steps) != 1 {
			flush()
			parts = append(parts, "("+w.alternatives(s.next, depth+1)+")")
			break
		}
		s = steps[0]
	}
	flush()
	if len(parts) == 0 {
		return `""`
	}
	return strings.Join(parts, " ")
}

// steps returns the alternatives of a node. A node that accepts no text has none.
func (w *writer) steps(at int32, depth int) []step {
	switch n := &w.nodes[at]; n.op {
	case opBytes:
		return w.characters(n)
	case opSplit:
		var steps []step
		w.choices(at, map[int32]bool{at: true}, &steps)
		return steps
	case opCall:
		return []step{{text: w.name(n.body), next: n.next}}
	case opRepeat:
		high := ""
		if n.max != unbounded {
			high = strconv.Itoa(int(n.max))
		}
		body := ""
		if depth >= maxGroups {
			body = w.name(n.body)
		} else {
			body = w.sequence(step{next: n.body}, depth+1)
		}
		return []step{{text: fmt.Sprintf("(%s){%d,%s}", body, n.min, high), next: n.next}}
	}
	return []step{{next: returns}}
}

// choices appends the alternatives of the opSplit node id to steps. It replaces an alternative that
// is itself an opSplit node by its alternatives, so that a rule does not begin with a reference to
// itself.
func (w *writer) choices(id int32, seen map[int32]bool, steps *[]step) {
	for _, to := range w.nodes[id].split {
		switch {
		case to != returns && seen[to]:
		case w.nodes[to].op == opSplit:
			seen[to] = true
			w.choices(to, seen, steps)
		default:
			if !seen[to] {
				*steps = append(*steps, step{next: to})
			}
			seen[to] = true
		}
	}
}

// characters returns the characters with which the texts of the opBytes node n can begin: a step
// for each node that follows such a character.
func (w *writer) characters(n *node) []step {
	spans := map[int32][]span{}
	var order []int32
	var walk func(n *node, lo, hi []byte)
	walk = func(n *node, lo, hi []byte) {
		for _, e := range n.edges {
			low, high := append(slices.Clone(lo), e.lo), append(slices.Clone(hi), e.hi)
			if !utf8.FullRune(low) {
				if next := &w.nodes[e.next]; next.op == opBytes && len(low) < utf8.UTFMax {
					walk(next, low, high)
					continue
				}
			}
			s, ok := spanOf(low, high)
			if w.failed = w.failed || !ok; !ok {
				return
			}
			if spans[e.next] == nil {
				order = append(order, e.next)
			}
			spans[e.next] = append(spans[e.next], s)
		}
	}
	walk(n, nil, nil)
	steps := make([]step, len(order))
	for i, next := range order {
		c := newClass(spans[next]...)
		steps[i].next = next
		if len(c) == 1 && c[0].lo == c[0].hi {
			steps[i].literal = string(c[0].lo)
		} else {
			steps[i].text = c.String()
		}
	}
	return steps
}

// spanOf returns the characters whose UTF-8 encoding has a byte from lo[i] to hi[i] at each
// position i. ok is false if lo or hi is not the encoding of a character, or if the characters are
// not contiguous.
func spanOf(lo, hi []byte) (s span, ok bool) {
	low, m := utf8.DecodeRune(lo)
	high, n := utf8.DecodeRune(hi)
	if m != len(lo) || n != len(hi) || m == 1 && hi[0] >= utf8.RuneSelf {
		return span{}, false
	}
	for i := range lo {
		if lo[i] < hi[i] { // the characters are contiguous only if all later bytes have their full range
			full := !slices.ContainsFunc(lo[i+1:], func(c byte) bool { return c != 0x80 }) &&
				!slices.ContainsFunc(hi[i+1:], func(c byte) bool { return c != 0xBF })
			return span{low, high}, full
		}
	}
	return span{low, high}, true
}

// String returns a class in GBNF.
func (c class) String() string {
	var out strings.Builder
	out.WriteByte('[')
	for _, s := range c {
		out.WriteString(escape(s.lo))
		if s.hi > s.lo {
			out.WriteString("-" + escape(s.hi))
		}
	}
	out.WriteByte(']')
	return out.String()
}

// quote returns a literal in GBNF.
func quote(text string) string {
	var out strings.Builder
	for _, r := range text {
		if r == '-' || r == '^' || r == '[' || r == ']' {
			out.WriteRune(r)
		} else {
			out.WriteString(escape(r))
		}
	}
	return `"` + out.String() + `"`
}

// escape returns a character for a class or literal, escaped in a way that all parsers of GBNF
// know.
func escape(r rune) string {
	switch {
	case r == '\n':
		return `\n`
	case r == '"' || r == '\\':
		return `\` + string(r)
	case r == '-' || r == '^' || r == '[' || r == ']' || r < ' ' || r == 0x7F:
		return fmt.Sprintf(`\x%02X`, r)
	case unicode.IsPrint(r):
		return string(r)
	case r <= 0xFFFF:
		return fmt.Sprintf(`\u%04X`, r)
	}
	return fmt.Sprintf(`\U%08X`, r)
}
