package grammar

import (
	"encoding/json"
	"strings"
)

// A CallForm is how calls of functions are written: Before, the name, Between,
// the arguments as a JSON object, After. Several have Apart between them, and
// all of them lie between Begin and End.
type CallForm struct {
	Begin, Before, Between, After, Apart, End string
}

// A Function is one that may be called.
type Function struct {
	Name       string
	Parameters json.RawMessage // the schema of its arguments; nil for any
	Strict     bool            // what of it cannot be enforced is refused; else the arguments are then any object
	Field      string          // of the request, where Parameters stand
}

// Calls is the call of one of the functions, or of several where many is set.
func Calls(form CallForm, functions []Function, many bool) (*Grammar, error) {
	kit := newJSONKit()
	ways, err := kit.calls(form, functions)
	if err != nil {
		return nil, err
	}
	one := seq(text(form.Before), ways, text(form.After))
	if many {
		one = seq(one, repeat(seq(text(form.Apart), one), 0, unbounded))
	}
	g, err := kit.build(kit.rule("root", seq(text(form.Begin), one, text(form.End))))
	return g, within("tools", err)
}

// calls are the functions' names with their arguments.
func (k *jsonKit) calls(form CallForm, functions []Function) (expr, error) {
	var ways []expr
	for _, f := range functions {
		arguments := k.object()
		if f.Parameters != nil {
			s := newSchemaKit(k)
			s.id = f.Name
			e, err := s.compile(f.Parameters, f.Field)
			switch {
			case err == nil:
				arguments = e
			case f.Strict:
				return nil, within(f.Field, err)
			}
		}
		ways = append(ways, seq(text(f.Name+form.Between), arguments))
	}
	return alt(ways...), nil
}

// Offered is an answer that may call functions: any text in which what follows
// the mark, with which the form begins, is such a call. A mark within reasoning,
// which t says of unless it is nil, is text like any other.
func Offered(t *Thinking, mark string, form CallForm, functions []Function) (*Grammar, error) {
	kit := newJSONKit()
	ways, err := kit.calls(form, functions)
	if err != nil {
		return nil, err
	}
	whole := &Grammar{closing: map[int32]int32{}}
	root := kit.rule("root", func(b *builder, next int32) int32 {
		free := b.reserve(len(mark))
		called := seq(text(strings.TrimPrefix(form.Before, mark)), ways, text(form.After))(b, free)
		for at := range len(mark) {
			b.free(free+int32(at), next, until(mark, at, free, called))
		}
		switch {
		case t == nil:
			return free
		case t.Begun:
			return whole.thoughts(b, t.Close, free)
		}
		return b.opening(t.Open, mark, next, whole.thoughts(b, t.Close, free), free)
	})
	g, err := kit.build(root)
	if err != nil {
		return nil, within("tools", err)
	}
	whole.nodes, whole.start = g.nodes, g.start
	return whole, nil
}

// reserve makes places for nodes that refer to one another; the first is
// answered.
func (b *builder) reserve(n int) int32 {
	first := int32(len(b.nodes))
	for range n {
		b.nodes = append(b.nodes, node{op: opSplit})
	}
	return first
}

// free makes of a reserved place one where the text may end, or go on by edges.
func (b *builder) free(at, end int32, edges []edge) {
	b.nodes[at].split = []int32{b.add(node{op: opBytes, edges: edges}), end}
}

// opening is text that may begin, after blanks, with a mark that leads inside.
// Any other is free text, in which the other mark is looked for.
func (b *builder) opening(open, mark string, end, inside, free int32) int32 {
	first := b.reserve(len(open))
	for at := range len(open) {
		edges := joined(func(c byte) int32 {
			switch {
			case c == open[at] && at+1 == len(open):
				return inside
			case c == open[at]:
				return first + int32(at) + 1
			case at == 0 && strings.IndexByte(" \n\r\t", c) >= 0:
				return first
			}
			return free + int32(longest(open[:at]+string([]byte{c}), mark))
		})
		b.free(first+int32(at), end, edges)
	}
	return first
}
