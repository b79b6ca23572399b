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
		var edges []edge
		for c := range 256 {
			to := next
			if reached := longest(mark[:at]+string([]byte{byte(c)}), mark); reached < len(mark) {
				to = first + int32(reached)
			}
			if last := len(edges) - 1; last >= 0 && edges[last].next == to {
				edges[last].hi = byte(c)
			} else {
				edges = append(edges, edge{byte(c), byte(c), to})
			}
		}
		b.nodes[first+int32(at)].edges = edges
		g.closing[first+int32(at)] = text(mark[at:])(b, next)
	}
	return first
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
