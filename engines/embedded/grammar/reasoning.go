package grammar

// A Thinking describes the reasoning before an answer.
type Thinking struct {
	Open, Close string // delimiters of the reasoning
	Started     bool   // the answer begins inside the reasoning
}

// After returns the grammar of an answer that may begin with unconstrained reasoning, as t
// describes, and then conforms to g. If g is nil, the text after the reasoning is unconstrained
// and the grammar ends with the reasoning.
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
	if !t.Started {
		blank := runes(newClass(span{' ', ' '}, span{'\n', '\n'}, span{'\r', '\r'}, span{'\t', '\t'}))
		start = b.add(node{op: opSplit, split: []int32{seq(repeat(blank, 0, maxBlank), text(t.Open))(b, inside), answer}})
	}
	whole.nodes, whole.start = b.nodes, start
	return whole
}

// moved returns a copy of the node. It adds shift to all references in the copy, except to the
// node returns.
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

// thoughts adds nodes that match any bytes up to the first mark, one node for each prefix of mark
// (Knuth, Morris, Pratt 1977), and returns the first of them. It records in g.closing how each node
// completes mark.
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

// until returns the edges of the node for the prefix of mark with the length at. A byte that
// completes mark leads to next. Any other byte leads to the node for the longest prefix of mark
// with which the text then ends. first is the node for the empty prefix.
func until(mark string, at int, first, next int32) []edge {
	return joined(func(c byte) int32 {
		if reached := longest(mark[:at]+string([]byte{c}), mark); reached < len(mark) {
			return first + int32(reached)
		}
		return next
	})
}

// joined returns edges for all bytes; adjacent bytes with the same target share an edge.
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

// longest returns the length of the longest suffix of s that is a prefix of mark.
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

// Close returns the state that follows s if the reasoning must end now. s must be inside the
// reasoning.
func (g *Grammar) Close(s *State) (*State, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tidy()
	s = g.adopt(s)
	return g.closure([]config{{g.closing[s.configs[0].node], s.configs[0].stack}}), g.exceeded()
}
