// Package grammar holds answers to a form: a grammar in GBNF, a JSON Schema, any
// JSON object, or the calls of functions.
//
// A grammar is compiled to a pushdown automaton over the bytes of UTF-8. Its
// states are made as they are reached and remembered, with the tokens of a
// vocabulary that may follow in each. Whatever can be begun can be finished:
// branches that lead nowhere are taken out when it is compiled.
package grammar

import (
	"anneal/domain"
)

// Bounds of what is compiled.
const (
	maxSource  = 256 << 10 // bytes of a grammar or a schema
	maxNodes   = 1 << 18
	maxNesting = 64 // of expressions and values
)

type op uint8

const (
	opBytes  op = iota // one byte, by edges
	opSplit            // any of several
	opCall             // a rule, then next
	opRepeat           // a body so many times, then next
	opReturn           // the end of a rule or a body
)

// unbounded is the max of a repetition without one.
const unbounded = -1

// An edge is taken by the bytes lo to hi.
type edge struct {
	lo, hi byte
	next   int32
}

// A node is a place in a grammar.
type node struct {
	op       op
	edges    []edge  // of opBytes
	split    []int32 // of opSplit
	body     int32   // of opCall the rule, and once linked its entry; of opRepeat the body's entry
	next     int32   // of opCall and opRepeat
	min, max int32   // of opRepeat
}

// returns is the node at the end of every rule and body.
const returns = 0

// An expr is compiled towards what follows it: it answers its own entry.
type expr func(b *builder, next int32) int32

// A builder makes the nodes of a grammar. What goes wrong first is kept in err.
type builder struct {
	nodes   []node
	rules   []rule
	waiting []int // rules to be compiled
	tails   map[edge]int32
	err     error
}

// A rule may be referred to before it is compiled.
type rule struct {
	name  string
	body  expr
	entry int32
}

func newBuilder() *builder {
	return &builder{nodes: []node{{op: opReturn}}, tails: map[edge]int32{}}
}

func (b *builder) fail(format string, args ...any) {
	if b.err == nil {
		b.err = domain.Errorf(domain.InvalidArgument, format, args...)
	}
}

func (b *builder) add(n node) int32 {
	if len(b.nodes) >= maxNodes {
		b.fail("it is too large: it takes more than %d states; make it smaller", maxNodes)
		return returns
	}
	b.nodes = append(b.nodes, n)
	return int32(len(b.nodes) - 1)
}

// rule makes a rule whose body is compiled later.
func (b *builder) rule(name string, body expr) int {
	b.rules = append(b.rules, rule{name: name, body: body})
	b.waiting = append(b.waiting, len(b.rules)-1)
	return len(b.rules) - 1
}

// build compiles all rules, of which root is the first to be followed.
func (b *builder) build(root int) (*Grammar, error) {
	for len(b.waiting) > 0 && b.err == nil {
		r := b.waiting[len(b.waiting)-1]
		b.waiting = b.waiting[:len(b.waiting)-1]
		entry := b.rules[r].body(b, returns)
		b.rules[r].entry = entry
	}
	if b.err != nil {
		return nil, b.err
	}
	callers := map[int32]int{} // entries by their rule, for messages
	for i := range b.nodes {
		if n := &b.nodes[i]; n.op == opCall {
			r := int(n.body)
			n.body = b.rules[r].entry
			callers[n.body] = r
		}
	}
	start := b.rules[root].entry
	if at := leftRecursive(b.nodes); at >= 0 {
		return nil, domain.Errorf(domain.InvalidArgument, "the rule %q begins with itself, which has no end: put what comes first before it", b.rules[callers[at]].name)
	}
	if !prune(b.nodes)[start] {
		return nil, domain.Errorf(domain.InvalidArgument, "nothing conforms to it: no text ever comes to its end; give what recurs a way out, and correct what contradicts")
	}
	return &Grammar{nodes: b.nodes, start: start}, nil
}

func nothing(_ *builder, next int32) int32 { return next }

// never is what no text conforms to.
func never(b *builder, _ int32) int32 { return b.add(node{op: opSplit}) }

func seq(parts ...expr) expr {
	return func(b *builder, next int32) int32 {
		for i := len(parts) - 1; i >= 0; i-- {
			next = parts[i](b, next)
		}
		return next
	}
}

func alt(parts ...expr) expr {
	if len(parts) == 1 {
		return parts[0]
	}
	return func(b *builder, next int32) int32 {
		var split []int32
		for _, part := range parts {
			split = append(split, part(b, next))
		}
		return b.add(node{op: opSplit, split: split})
	}
}

func optional(e expr) expr { return alt(e, nothing) }

// text is those bytes and no others.
func text(s string) expr {
	return func(b *builder, next int32) int32 {
		for i := len(s) - 1; i >= 0; i-- {
			next = b.single(edge{s[i], s[i], next})
		}
		return next
	}
}

// single is a node with one edge; the same is made once.
func (b *builder) single(e edge) int32 {
	if at, ok := b.tails[e]; ok {
		return at
	}
	at := b.add(node{op: opBytes, edges: []edge{e}})
	b.tails[e] = at
	return at
}

// call refers to a rule.
func call(rule int) expr {
	return func(b *builder, next int32) int32 {
		return b.add(node{op: opCall, body: int32(rule), next: next})
	}
}

// repeat is e from least to most times; most may be unbounded.
func repeat(e expr, least, most int) expr {
	switch {
	case most != unbounded && most < least:
		return never
	case most == 0:
		return nothing
	case least == 1 && most == 1:
		return e
	case least == 0 && most == 1:
		return optional(e)
	}
	return func(b *builder, next int32) int32 {
		if least <= 1 && most == unbounded {
			loop := b.add(node{op: opSplit})
			body := e(b, loop)
			b.nodes[loop].split = []int32{body, next}
			if least == 1 {
				return body
			}
			return loop
		}
		return b.add(node{op: opRepeat, body: e(b, returns), next: next, min: int32(least), max: int32(most)})
	}
}
