package grammar

import (
	"encoding/json"
	"strings"
)

// A CallForm is the syntax of function calls. A call consists of Before, the name, Between, the
// arguments as a JSON object, and After. Several calls are joined by Separator; Begin precedes
// the first call and End follows the last.
type CallForm struct {
	Begin, Before, Between, After, Separator, End string
}

// A Function is a function that a completion may call.
type Function struct {
	Name       string
	Parameters json.RawMessage // JSON Schema of the arguments; nil allows any object
	// Strict makes an unsupported keyword of Parameters an error. Otherwise Parameters with such a
	// keyword allow any object as arguments.
	Strict bool
	Field  string // request field with the Parameters, for errors
}

// Calls returns the grammar of a call of one of the functions, or of one or more calls if many is
// true. It returns InvalidArgument if the Parameters of a Strict function cannot be enforced.
func Calls(form CallForm, functions []Function, many bool) (*Grammar, error) {
	kit := newJSONKit()
	ways, err := kit.calls(form, functions)
	if err != nil {
		return nil, err
	}
	one := seq(text(form.Before), ways, text(form.After))
	if many {
		one = seq(one, repeat(seq(text(form.Separator), one), 0, unbounded))
	}
	g, err := kit.build(kit.rule("root", seq(text(form.Begin), one, text(form.End))))
	return g, within("tools", err)
}

// calls returns an expression that matches the name of a function, and the function's arguments
// after it.
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

// Offered returns the grammar of a completion that may contain calls of functions: any text, but
// each delimiter in it begins a valid call. form begins with the delimiter. If t is not nil,
// reasoning may precede the text. A delimiter in the reasoning has no meaning.
func Offered(t *Thinking, delimiter string, form CallForm, functions []Function) (*Grammar, error) {
	kit := newJSONKit()
	ways, err := kit.calls(form, functions)
	if err != nil {
		return nil, err
	}
	whole := &Grammar{closing: map[int32]int32{}}
	root := kit.rule("root", func(b *builder, next int32) int32 {
		free := b.reserve(len(delimiter))
		called := seq(text(strings.TrimPrefix(form.Before, delimiter)), ways, text(form.After))(b, free)
		for at := range len(delimiter) {
			b.free(free+int32(at), next, until(delimiter, at, free, called))
		}
		switch {
		case t == nil:
			return free
		case t.Started:
			return whole.untilDelimiter(b, t.Close, free)
		}
		return b.opening(t.Open, delimiter, next, whole.untilDelimiter(b, t.Close, free), free)
	})
	g, err := kit.build(root)
	if err != nil {
		return nil, within("tools", err)
	}
	whole.nodes, whole.start = g.nodes, g.start
	return whole, nil
}

// reserve adds n nodes, whose edges can then refer to one another, and returns the first one.
func (b *builder) reserve(n int) int32 {
	first := int32(len(b.nodes))
	for range n {
		b.nodes = append(b.nodes, node{op: opSplit})
	}
	return first
}

// free defines the reserved node id: the text either ends there, and node end follows, or continues
// with one of edges.
func (b *builder) free(id, end int32, edges []edge) {
	b.nodes[id].split = []int32{b.add(node{op: opBytes, edges: edges}), end}
}

// opening returns a node for text that may begin with open, the delimiter of reasoning, after
// whitespace. The node inside follows open. Any other text continues at free, the first node of
// those that recognize delimiter.
func (b *builder) opening(open, delimiter string, end, inside, free int32) int32 {
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
			return free + int32(longest(open[:at]+string([]byte{c}), delimiter))
		})
		b.free(first+int32(at), end, edges)
	}
	return first
}
