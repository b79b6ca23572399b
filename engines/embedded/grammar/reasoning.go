package grammar

// A Thinking describes the reasoning before an answer.
type Thinking struct {
	Open, Close string // its delimiters
	Begun       bool   // the answer begins inside the reasoning
}

// After is the grammar of an answer that may begin with reasoning, which is unconstrained, and
// then conforms to g. If g is nil, the answer is unconstrained: the grammar ends with the
// reasoning.
func After(t Thinking, g *Grammar) *Grammar {
	b := newBuilder()
	answer := int32(returns)
	if g != nil {
		shift := int32(len(b.nodes)) - 1 // node 0 is shared
		for _, n := range g.nodes[1:] {
			b.nodes = append(b.nodes, n.moved(shift))
		}
		if answer = g.start; answer != returns {
			answer += shift
		}
	}
	maxBlank := 2
	if g == nil {
		maxBlank = unbounded
	}
	layout := repeat(text("\n"), 0, maxBlank)(b, answer)
	whole := &Grammar{closing: map[int32]int32{}}
	inside := whole.thoughts(b, t.Close, layout)
	start := inside
	if !t.Begun {
		blank := runes(newClass(span{' ', ' '}, span{'\n', '\n'}, span{'\r', '\r'}, span{'\t', '\t'}))
		start = b.add(node{op: opSplit, split: []int32{seq(repeat(blank, 0, maxBlank), text(t.Open))(b, inside), answer}})
	}
	whole.nodes, whole.start = b.nodes, start
	return whole
}

// moved returns a node with its references shifted.
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

// thoughts matches any bytes up to the first mark, with a node for each prefix of the mark
// (Knuth, Morris, Pratt 1977). It records for each node how the mark is completed.
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

// until returns the edges of a text that ends with the first at bytes of mark: to the node of
// the longest prefix of mark that the text then ends with, counted from first, or to next after
// the whole mark.
func until(mark string, at int, first, next int32) []edge {
	return joined(func(c byte) int32 {
		if reached := longest(mark[:at]+string([]byte{c}), mark); reached < len(mark) {
			return first + int32(reached)
		}
		return next
	})
}

// joined returns edges for all bytes, with adjacent bytes of one target merged.
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

// longest is the length of the longest suffix of s that is a prefix of mark.
func longest(s, mark string) int {
	for n := min(len(s), len(mark)); n > 0; n-- {
		if s[len(s)-n:] == mark[:n] {
			return n
		}
	}
	return 0
}

// Reasoning reports whether the text so far ends inside the reasoning.
func (g *Grammar) Reasoning(s *State) bool {
	if len(s.configs) != 1 {
		return false
	}
	_, inside := g.closing[s.configs[0].node]
	return inside
}

// Close returns the state that forces the end of the reasoning.
func (g *Grammar) Close(s *State) (*State, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tidy()
	s = g.adopt(s)
	return g.closure([]config{{g.closing[s.configs[0].node], s.configs[0].stack}}), g.exceeded()
}
