package chat

import (
	"fmt"

	structures "github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// An instrumenter adds the limits of a rendering to a parsed template: it inserts a deadline check
// at the start of each body, and filters around expressions that create values. It rejects nodes
// that it does not know, so that no expression escapes the limits.
type instrumenter struct {
	state   *rendering
	visited map[nodes.Node]bool
	err     error
}

// instrument adds the limits of a rendering to the nodes of a template.
func instrument(root *nodes.Template, state *rendering) error {
	in := &instrumenter{state: state, visited: map[nodes.Node]bool{}}
	in.body(root.Nodes)
	return in.err
}

// body instruments the nodes of a body. It skips Template.Macros, because the body also has the
// statements of these macros.
func (in *instrumenter) body(parts []nodes.Node) {
	for _, part := range parts {
		switch part := part.(type) {
		case *nodes.Data, *nodes.Comment:
		case *nodes.Output:
			part.Condition = in.expression(part.Condition)
			part.Expression = in.filtered(in.expression(part.Expression), "output")
			if part.Alternative != nil {
				part.Alternative = in.filtered(in.expression(part.Alternative), "output")
			}
		case *nodes.ControlStructureBlock:
			in.statement(part.ControlStructure)
		default:
			in.unknown(part)
		}
	}
}

func (in *instrumenter) wrapper(w *nodes.Wrapper) {
	if w == nil {
		return
	}
	in.body(w.Nodes)
	tick := &nodes.ControlStructureBlock{
		Location: w.Location, Name: "tick", ControlStructure: deadlineCheck{w.Location, in.state},
	}
	w.Nodes = append([]nodes.Node{tick}, w.Nodes...)
}

func (in *instrumenter) statement(s nodes.ControlStructure) {
	switch s := s.(type) {
	case *structures.RawControlStructure, *structures.BreakControlStructure, *structures.ContinueControlStructure:
	case *structures.IfControlStructure:
		in.expressions(s.Conditions)
		for _, w := range s.Wrappers {
			in.wrapper(w)
		}
	case *structures.ForControlStructure:
		s.ObjectEvaluator = in.filtered(in.expression(s.ObjectEvaluator), "iterated")
		s.IfCondition = in.expression(s.IfCondition)
		in.wrapper(s.BodyWrapper)
		in.wrapper(s.EmptyWrapper)
	case *structures.DoControlStructure:
		s.Expression = in.expression(s.Expression)
	case *macroStatement:
		in.pairs(s.Kwargs)
		in.wrapper(s.Wrapper)
	case *setStatement:
		s.target = in.expression(s.target)
		s.value, s.condition = in.expression(s.value), in.expression(s.condition)
		s.alternative = in.expression(s.alternative)
		in.wrapper(s.body)
	case *withStatement:
		in.pairs(s.pairs)
		in.wrapper(s.body)
	default:
		in.unknown(s)
	}
}

// expression instruments the operands of e, and returns e, or a filter around e if e creates a
// value. The parser may use one node in two places; such a node is instrumented once.
func (in *instrumenter) expression(e nodes.Expression) nodes.Expression {
	if e == nil {
		return nil
	}
	if !in.visited[e] {
		in.visited[e] = true
		in.operands(e)
	}
	switch e := e.(type) {
	case *nodes.BinaryExpression:
		if e.Operator.Token.Type == tokens.Multiply {
			return in.filtered(e.Left, "times", e.Right)
		}
		return in.filtered(e, "bounded")
	case *nodes.Call, *nodes.FilteredExpression, *nodes.List, *nodes.Tuple, *nodes.Dict:
		return in.filtered(e, "bounded")
	case *nodes.GetItem: // not by gonja, which fails on the index -1 of a list with one item
		if arg, ok := e.Arg.(*nodes.UnaryExpression); ok && arg.Negative {
			return in.filtered(e.Node, "fromEnd", arg.Term)
		}
	}
	return e
}

func (in *instrumenter) operands(e nodes.Expression) {
	switch e := e.(type) {
	case *nodes.String, *nodes.Integer, *nodes.Float, *nodes.Bool, *nodes.None, *nodes.Name, *nodes.Error:
	case *nodes.BinaryExpression:
		e.Left, e.Right = in.expression(e.Left), in.expression(e.Right)
	case *nodes.UnaryExpression:
		e.Term = in.expression(e.Term)
	case *nodes.Negation:
		e.Term = in.expression(e.Term)
	case *nodes.FilteredExpression:
		e.Expression = in.expression(e.Expression)
		for _, filter := range e.Filters {
			in.arguments(filter.Args, filter.Kwargs)
		}
	case *nodes.TestExpression:
		e.Expression = in.expression(e.Expression)
		in.arguments(e.Test.Args, e.Test.Kwargs)
	case *nodes.Call:
		e.Func, e.Parent = in.expression(e.Func), in.expression(e.Parent)
		in.arguments(e.Args, e.Kwargs)
	case *nodes.List:
		in.expressions(e.Val)
	case *nodes.Tuple:
		in.expressions(e.Val)
	case *nodes.Dict:
		in.pairs(e.Pairs)
	case *nodes.GetAttribute:
		e.Node = in.expression(e.Node)
	case *nodes.GetItem:
		e.Node, e.Arg = in.expression(e.Node), in.expression(e.Arg)
	case *nodes.GetSlice:
		e.Node, e.Start = in.expression(e.Node), in.expression(e.Start)
		e.End, e.Step = in.expression(e.End), in.expression(e.Step)
	default:
		in.unknown(e)
	}
}

func (in *instrumenter) expressions(list []nodes.Expression) {
	for i, e := range list {
		list[i] = in.expression(e)
	}
}

func (in *instrumenter) arguments(args []nodes.Expression, kwargs map[string]nodes.Expression) {
	in.expressions(args)
	for name, e := range kwargs {
		kwargs[name] = in.expression(e)
	}
}

func (in *instrumenter) pairs(pairs []*nodes.Pair) {
	for _, pair := range pairs {
		pair.Key, pair.Value = in.expression(pair.Key), in.expression(pair.Value)
	}
}

func (in *instrumenter) filtered(
	e nodes.Expression, filter string, args ...nodes.Expression,
) *nodes.FilteredExpression {
	call := &nodes.FilterCall{
		Token: &tokens.Token{Type: tokens.Name, Val: filter}, Name: filter, Args: args,
		Kwargs: map[string]nodes.Expression{},
	}
	return &nodes.FilteredExpression{Expression: e, Filters: []*nodes.FilterCall{call}}
}

func (in *instrumenter) unknown(node nodes.Node) {
	if in.err == nil {
		in.err = fmt.Errorf("the template has a Jinja expression or statement that is not supported: %T", node)
	}
}
