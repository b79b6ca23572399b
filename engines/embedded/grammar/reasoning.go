package grammar

// A Thinking says how reasoning stands before an answer.
type Thinking struct {
	Open, Close string // its marks
	Begun       bool   // the answer begins inside of it
}

// After is the grammar of an answer that may begin with reasoning, which is
// free; it conforms to g after that. A nil g is an answer that is not held to
// anything: its grammar ends where the reasoning does.
func After(t Thinking, g *Grammar) *Grammar {
	b := newBuilder()
	answer := int32(returns)
	if g != nil {
		shift := int32(len(b.nodes)) - 1 // node 0 is the same
		for _, n := range g.nodes[1:] {
			b.nodes = append(b.nodes, n.moved(shift))
		}
		if answer = g.start; answer != returns {
			answer += shift
		}
	}
	most := 2
	if g == nil {
		most = unbounded
	}
	layout := repeat(text("\n"), 0, most)(b, answer)
	whole := &Grammar{closing: map[int32]int32{}}
	inside := whole.thoughts(b, t.Close, layout)
	start := inside
	if !t.Begun {
		blank := runes(newClass(span{' ', ' '}, span{'\n', '\n'}, span{'\r', '\r'}, span{'\t', '\t'}))
		start = b.add(node{op: opSplit, split: []int32{seq(repeat(blank, 0, most), text(t.Open))(b, inside), answer}})
	}
	whole.nodes, whole.start = b.nodes, start
	return whole
}

// moved is a node among others.
func (n node) moved(shift int32) node {
	to := func(at int32) int32 {
		if at == returns {
			return returns
		}
		return at + shift
	}
	edges, split := n.edges, n.split
	n.edges, n.split = nil, nil
	for _, e := range edges {
		n.edges = append(n.edges, edge{e.lo, e.hi, to(e.next)})
	}
	for _, s := range split {
		n.split = append(n.split, to(s))
	}
	n.body, n.next = to(n.body), to(n.next)
	return n
}

// thoughts are any bytes up to the first mark: one node for each beginning of
// the mark that the text may end with (Knuth, Morris, Pratt 1977). It notes how
// each is led to the end of the mark at once.
func (g *Grammar) thoughts(b *builder, mark string, next int32) int32 {
	first := int32(len(b.nodes))
	for range mark {
		b.nodes = append(b.nodes, node{op: opBytes})
	}
	for at := range len(mark) {
		b.nodes[first+int32(at)].edges = until(mark, at, first, next)
		g.closing[first+int32(at)] = text(mark[at:])(b, next)
	}
	return first
}

// until is where each byte leads in a text that ends with so many bytes of a
// mark: to one of as many places as the mark has bytes, the first of which is
// for none of it, or on behind the mark.
func until(mark string, at int, first, next int32) []edge {
	return joined(func(c byte) int32 {
		if reached := longest(mark[:at]+string([]byte{c}), mark); reached < len(mark) {
			return first + int32(reached)
		}
		return next
	})
}

// joined are edges for all bytes, those that lead to one place together.
func joined(to func(c byte) int32) (edges []edge) {
	for c := range 256 {
		at := to(byte(c))
		if last := len(edges) - 1; last >= 0 && edges[last].next == at {
			edges[last].hi = byte(c)
		} else {
			edges = append(edges, edge{byte(c), byte(c), at})
		}
	}
	return edges
}

// longest is the length of the longest end of s that begins mark.
func longest(s, mark string) int {
	for n := min(len(s), len(mark)); n > 0; n-- {
		if s[len(s)-n:] == mark[:n] {
			return n
		}
	}
	return 0
}

// Reasoning tells that the text so far is inside of its reasoning.
func (g *Grammar) Reasoning(s *State) bool {
	if len(s.configs) != 1 {
		return false
	}
	_, inside := g.closing[s.configs[0].node]
	return inside
}

// Close is the state in which the reasoning must end.
func (g *Grammar) Close(s *State) (*State, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tidy()
	s = g.adopt(s)
	return g.closure([]config{{g.closing[s.configs[0].node], s.configs[0].stack}}), g.exceeded()
}
