package grammar

// A Thinking describes the reasoning with which a completion may begin.
type Thinking struct {
	Open, Close string // delimiters of the reasoning
	Started     bool   // the prompt already contains Open, so the completion begins inside the reasoning
}

// After returns the grammar of a completion that may begin with reasoning, as t describes it, and
// then conforms to g. The reasoning is unconstrained. If g is nil, the grammar ends after the
// reasoning, and the text after it is unconstrained too.
func After(t Thinking, g *Grammar) *Grammar {
	b := newBuilder()
	answer := int32(returns)
	if g != nil {
		shift := int32(len(b.nodes)) - 1 // b already has the node 0 (returns) of g
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
	inside := whole.untilDelimiter(b, t.Close, layout)
	start := inside
	if !t.Started {
		blank := runes(newClass(span{' ', ' '}, span{'\n', '\n'}, span{'\r', '\r'}, span{'\t', '\t'}))
		start = b.add(node{op: opSplit, split: []int32{seq(repeat(blank, 0, maxBlank), text(t.Open))(b, inside), answer}})
	}
	whole.nodes, whole.start = b.nodes, start
	return whole
}

// moved returns a copy of the node in which shift is added to all references, except references to
// returns, the node at the end of every rule.
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

// untilDelimiter adds nodes that match any text up to the first delimiter, one node for each prefix of
// the delimiter (Knuth, Morris, Pratt 1977), and returns the first one. It records in g.closing how
// to complete the delimiter from each node.
func (g *Grammar) untilDelimiter(b *builder, delimiter string, next int32) int32 {
	first := int32(len(b.nodes))
	for range delimiter {
		b.nodes = append(b.nodes, node{op: opBytes})
	}
	for at := range len(delimiter) {
		b.nodes[first+int32(at)].edges = until(delimiter, at, first, next)
		g.closing[first+int32(at)] = text(delimiter[at:])(b, next)
	}
	return first
}

// until returns the edges of the node for the first n bytes of the delimiter. A byte that completes
// the delimiter leads to next. Any other byte leads to the node for the longest prefix of the
// delimiter with which the text then ends. first is the node for the empty prefix.
func until(delimiter string, n int, first, next int32) []edge {
	return joined(func(c byte) int32 {
		if reached := longest(delimiter[:n]+string([]byte{c}), delimiter); reached < len(delimiter) {
			return first + int32(reached)
		}
		return next
	})
}

// joined returns edges for all bytes. Adjacent bytes with the same target share an edge.
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

// longest returns the length of the longest suffix of s that is a prefix of delimiter.
func longest(s, delimiter string) int {
	for n := min(len(s), len(delimiter)); n > 0; n-- {
		if s[len(s)-n:] == delimiter[:n] {
			return n
		}
	}
	return 0
}

// Reasoning reports whether the state s is inside the reasoning.
func (g *Grammar) Reasoning(s *State) bool {
	if len(s.configs) != 1 {
		return false
	}
	_, inside := g.closing[s.configs[0].node]
	return inside
}

// Close returns the state that replaces s when the reasoning must end: it accepts only the missing
// part of the closing delimiter. s must be inside the reasoning.
func (g *Grammar) Close(s *State) (*State, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.prepareCall()
	s = g.adopt(s)
	return g.closure([]config{{g.closing[s.configs[0].node], s.configs[0].stack}}), g.exceeded()
}
