package grammar

import (
	"encoding/binary"
)

// maxProduct is the maximum number of states of all intersections in a schema.
const maxProduct = 4096

// intersect returns an expression that matches the strings that meet all conditions. The conditions
// must not refer to rules.
func (k *schemaKit) intersect(all []condition) expr {
	p := &product{limit: maxProduct - k.explored, ids: map[*State]uint32{dead: 0}, known: map[string]int{}}
	for _, c := range all {
		b := newBuilder()
		g, err := b.build(b.rule("part", c.e))
		switch {
		case b.err != nil:
			k.err = b.err
			return never
		case err != nil && !c.not: // no string can meet the condition
			return never
		case err == nil:
			p.parts, p.not = append(p.parts, g), append(p.not, c.not)
		}
	}
	ok := p.explore()
	k.explored += len(p.tuples)
	if !ok {
		k.fail("the schema combines patterns and lengths into more than %d states: simplify them, or omit one", maxProduct)
		return never
	}
	return p.expr
}

// A product is the product automaton of several grammars: its states are tuples of their states.
type product struct {
	limit  int // maximum number of tuples that explore may find
	parts  []*Grammar
	not    []bool
	ids    map[*State]uint32
	known  map[string]int
	tuples [][]*State
	edges  [][]edge // edges of each tuple; next is the index of a tuple
}

// explore finds all tuples that can be reached, and reports whether there are at most limit.
func (p *product) explore() bool {
	var start []*State
	for _, g := range p.parts {
		s, err := g.Start()
		if err != nil {
			return false
		}
		start = append(start, s)
	}
	p.tuple(start)
	for at := 0; at < len(p.tuples); at++ {
		if len(p.tuples) > p.limit {
			return false
		}
		p.edges = append(p.edges, nil)
		for c := range 256 {
			next, ok := p.step(p.tuples[at], byte(c))
			if !ok {
				continue
			}
			to := int32(p.tuple(next))
			if own := p.edges[at]; len(own) > 0 && own[len(own)-1].next == to && int(own[len(own)-1].hi) == c-1 {
				own[len(own)-1].hi = byte(c)
				continue
			}
			p.edges[at] = append(p.edges[at], edge{byte(c), byte(c), to})
		}
	}
	return true
}

// tuple returns the index of a tuple of states. It adds a tuple that it does not know.
func (p *product) tuple(states []*State) int {
	var key []byte
	for _, s := range states {
		id, ok := p.ids[s]
		if !ok {
			id = uint32(len(p.ids))
			p.ids[s] = id
		}
		key = binary.LittleEndian.AppendUint32(key, id)
	}
	i, ok := p.known[string(key)]
	if !ok {
		i = len(p.tuples)
		p.known[string(key)] = i
		p.tuples = append(p.tuples, states)
	}
	return i
}

// step returns the states after the byte c. ok is false if a grammar rejects c.
func (p *product) step(from []*State, c byte) (to []*State, ok bool) {
	to = make([]*State, len(from))
	for i, s := range from {
		g := p.parts[i]
		g.tables.work, g.tables.fresh = 0, 0
		if to[i] = g.step(s, c); to[i] == dead && !p.not[i] {
			return nil, false
		}
	}
	return to, true
}

func (p *product) accepts(tuple []*State) bool {
	for i, s := range tuple {
		if s.accepts == p.not[i] {
			return false
		}
	}
	return true
}

func (p *product) expr(b *builder, next int32) int32 {
	nodes := make([]int32, len(p.tuples))
	for i := range nodes {
		nodes[i] = b.add(node{op: opSplit})
	}
	if b.err != nil {
		return next
	}
	for i, tuple := range p.tuples {
		edges := make([]edge, len(p.edges[i]))
		for j, e := range p.edges[i] {
			edges[j] = edge{e.lo, e.hi, nodes[e.next]}
		}
		b.nodes[nodes[i]].split = []int32{b.add(node{op: opBytes, edges: edges})}
		if p.accepts(tuple) {
			b.nodes[nodes[i]].split = append(b.nodes[nodes[i]].split, next)
		}
	}
	return nodes[0]
}
