// Package grammar constrains the output of a model: to a grammar in GBNF, a JSON Schema, any
// JSON object, or tool calls.
//
// A grammar is compiled to a pushdown automaton over the bytes of UTF-8. The automaton's states
// are computed on demand and cached, each with the mask of the vocabulary's allowed tokens.
// Every accepted prefix can be completed, because compilation prunes the branches that cannot
// reach an end.
package grammar

import (
	"anneal/domain"
)

// Limits of a grammar.
const (
	maxSource  = 256 << 10 // maximum size of a grammar or schema, in bytes
	maxNodes   = 1 << 18
	maxNesting = 64 // maximum nesting of expressions and values
)

type op uint8

const (
	opBytes  op = iota // consumes a byte that an edge accepts
	opSplit            // continues at one of several alternatives
	opCall             // calls the body of a rule, then continues at next
	opRepeat           // calls a body repeatedly, then continues at next
	opReturn           // returns from a rule or body
)

// unbounded is the value of max for a repetition without a maximum.
const unbounded = -1

// An edge leads to the node next if the next byte is in the range from lo to hi.
type edge struct {
	lo, hi byte
	next   int32
}

// A node is a state of the automaton. The comment of a field names the operations that use it.
type node struct {
	op    op
	edges []edge  // opBytes: the accepted bytes, and the node after each
	split []int32 // opSplit: nodes of the alternatives
	// opCall: index of the rule, which build replaces by its first node; opRepeat: first node of
	// the body.
	body     int32
	next     int32 // opCall, opRepeat: the node after the body
	min, max int32 // opRepeat: bounds of the number of repetitions
}

// returns is the node that ends every rule and body.
const returns = 0

// An expr is an expression of a grammar: a function that adds nodes that match the expression to b,
// and returns the first one. The nodes continue at the node next.
type expr func(b *builder, next int32) int32

// A builder creates the nodes of a grammar, and keeps the first error.
type builder struct {
	nodes   []node
	rules   []rule
	waiting []int // indices of the rules that are not compiled yet
	tails   map[edge]int32
	err     error
}

// A rule is a named expression of a grammar. Other rules can refer to it before it is compiled.
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
		b.fail("the grammar is too large: it needs more than %d states; simplify it", maxNodes)
		return returns
	}
	b.nodes = append(b.nodes, n)
	return int32(len(b.nodes) - 1)
}

// rule adds a rule, whose body build compiles later, and returns its index.
func (b *builder) rule(name string, body expr) int {
	b.rules = append(b.rules, rule{name: name, body: body})
	b.waiting = append(b.waiting, len(b.rules)-1)
	return len(b.rules) - 1
}

// build compiles all rules, and returns the grammar that begins with the rule root.
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
	callers := map[int32]int{} // rules by their first node, for errors
	for i := range b.nodes {
		if n := &b.nodes[i]; n.op == opCall {
			r := int(n.body)
			n.body = b.rules[r].entry
			callers[n.body] = r
		}
	}
	start := b.rules[root].entry
	if at := leftRecursive(b.nodes); at >= 0 {
		return nil, domain.Errorf(domain.InvalidArgument,
			"rule %q is left-recursive: put a terminal before the recursion", b.rules[callers[at]].name)
	}
	if !prune(b.nodes)[start] {
		return nil, domain.Errorf(domain.InvalidArgument,
			"no finite text conforms to the grammar: give recursive rules an alternative without recursion, "+
				"and correct contradictions")
	}
	return &Grammar{nodes: b.nodes, start: start}, nil
}

func nothing(_ *builder, next int32) int32 { return next }

// never is an expression that matches no text.
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

// text returns the expression that matches exactly s.
func text(s string) expr {
	return func(b *builder, next int32) int32 {
		for i := len(s) - 1; i >= 0; i-- {
			next = b.single(edge{s[i], s[i], next})
		}
		return next
	}
}

// single returns a node whose only edge is e. It returns the same node for equal edges.
func (b *builder) single(e edge) int32 {
	if at, ok := b.tails[e]; ok {
		return at
	}
	at := b.add(node{op: opBytes, edges: []edge{e}})
	b.tails[e] = at
	return at
}

// call returns an expression that refers to a rule.
func call(rule int) expr {
	return func(b *builder, next int32) int32 {
		return b.add(node{op: opCall, body: int32(rule), next: next})
	}
}

// repeat returns an expression that matches minCount to maxCount occurrences of e. maxCount may be
// unbounded.
func repeat(e expr, minCount, maxCount int) expr {
	switch {
	case maxCount != unbounded && maxCount < minCount:
		return never
	case maxCount == 0:
		return nothing
	case minCount == 1 && maxCount == 1:
		return e
	case minCount == 0 && maxCount == 1:
		return optional(e)
	}
	return func(b *builder, next int32) int32 {
		if minCount <= 1 && maxCount == unbounded {
			loop := b.add(node{op: opSplit})
			body := e(b, loop)
			b.nodes[loop].split = []int32{body, next}
			if minCount == 1 {
				return body
			}
			return loop
		}
		return b.add(node{op: opRepeat, body: e(b, returns), next: next, min: int32(minCount), max: int32(maxCount)})
	}
}
