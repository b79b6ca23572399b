package chat

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/nikolalohinski/gonja/v2/builtins"
	structures "github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// statements returns the Jinja statements that chat templates may use. It leaves out statements
// that load other templates, or let a part of a template render itself. It replaces
// gonja's statements set and with, which do not export their expressions to the instrumenter.
func statements(state *rendering) *exec.ControlStructureSet {
	known := map[string]parser.ControlStructureParser{"set": parseSet, "with": parseWith}
	for _, name := range []string{"if", "raw", "do", "break", "continue"} {
		known[name], _ = builtins.ControlStructures.Get(name)
	}
	parseFor, _ := builtins.ControlStructures.Get("for")
	known["for"] = func(p, args *parser.Parser) (nodes.ControlStructure, error) {
		parsed, err := parseFor(p, args)
		if loop, ok := parsed.(*structures.ForControlStructure); ok && loop.Recursive {
			return nil, errors.New("recursive loops are not supported: use a macro")
		}
		return parsed, err
	}
	parseMacro, _ := builtins.ControlStructures.Get("macro")
	known["macro"] = func(p, args *parser.Parser) (nodes.ControlStructure, error) {
		parsed, err := parseMacro(p, args)
		if macro, ok := parsed.(*structures.MacroControlStructure); ok {
			return &macroStatement{macro, state}, err
		}
		return parsed, err
	}
	return exec.NewControlStructureSet(known)
}

// A deadlineCheck is a statement that the instrumenter inserts at the start of each body. It
// returns an error after the deadline of the rendering.
type deadlineCheck struct {
	at    *tokens.Token
	state *rendering
}

func (s deadlineCheck) Position() *tokens.Token { return s.at }
func (deadlineCheck) String() string            { return "deadline check" }

// Execute implements exec.ControlStructure.
func (s deadlineCheck) Execute(*exec.Renderer, *nodes.ControlStructureBlock) error {
	return s.state.tick()
}

// A macroStatement is the statement {% macro %}. It limits the depth of nested calls of the macro.
type macroStatement struct {
	*structures.MacroControlStructure
	state *rendering
}

// Execute implements exec.ControlStructure.
func (s *macroStatement) Execute(r *exec.Renderer, tag *nodes.ControlStructureBlock) error {
	if err := s.MacroControlStructure.Execute(r, tag); err != nil {
		return err
	}
	value, _ := r.Environment.Context.Get(s.Name)
	macro, ok := value.(exec.Macro)
	if !ok {
		return fmt.Errorf("%s is not a macro", s.Name)
	}
	r.Environment.Context.Set(s.Name, exec.Macro(func(params *exec.VarArgs) *exec.Value {
		if s.state.calls == maxCalls {
			return exec.AsValue(fmt.Errorf("macro calls are nested more than %d deep", maxCalls))
		}
		s.state.calls++
		defer func() { s.state.calls-- }()
		return macro(params)
	}))
	return nil
}

// A setStatement is the statement {% set target = value [if condition else alternative] %}, or {%
// set target %}body{% endset %}.
type setStatement struct {
	at                            *tokens.Token
	variable                      string // name of the variable with which target begins
	target                        nodes.Expression
	value, condition, alternative nodes.Expression
	body                          *nodes.Wrapper
}

func (s *setStatement) Position() *tokens.Token { return s.at }
func (s *setStatement) String() string          { return "set " + s.variable }

func parseSet(p, args *parser.Parser) (nodes.ControlStructure, error) {
	s := &setStatement{at: p.Current()}
	if first := args.Current(); first != nil {
		s.variable = first.Val
	}
	var err error
	if s.target, err = args.ParseVariableOrLiteral(); err != nil {
		return nil, err
	}
	if args.Match(tokens.Assign) == nil {
		if !args.End() {
			return nil, args.Error("expected '=' or the end of the tag", args.Current())
		}
		var end *parser.Parser
		if s.body, end, err = p.WrapUntil("endset"); err == nil && !end.End() {
			err = end.Error("endset takes no arguments", nil)
		}
		return s, err
	}
	if s.value, err = args.ParseExpression(); err != nil {
		return nil, err
	}
	if s.condition, s.alternative, err = args.ParseCondition(); err != nil {
		return nil, err
	}
	if s.condition != nil && s.alternative == nil || !args.End() {
		return nil, args.Error("malformed set: expected 'set name = value'", args.Current())
	}
	return s, nil
}

// Execute implements exec.ControlStructure. It returns an error if the new value of the variable
// exceeds the limits, for example because it contains itself.
func (s *setStatement) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	value, err := s.evaluate(r)
	if err != nil {
		return err
	}
	if err := s.assign(r, value); err != nil {
		return err
	}
	assigned, _ := r.Environment.Context.Get(s.variable)
	_, err = weigh(assigned)
	return err
}

func (s *setStatement) evaluate(r *exec.Renderer) (*exec.Value, error) {
	if s.body != nil {
		var text bytes.Buffer
		sub := r.Inherit()
		sub.Output = &text
		err := sub.ExecuteWrapper(s.body)
		return exec.AsSafeValue(text.String()), err
	}
	chosen := s.value
	if s.condition != nil {
		condition := r.Eval(s.condition)
		if condition.IsError() {
			return nil, condition
		}
		if condition.IsNil() || !condition.IsTrue() {
			chosen = s.alternative
		}
	}
	value := r.Eval(chosen)
	if value.IsError() {
		return nil, value
	}
	return value, nil
}

func (s *setStatement) assign(r *exec.Renderer, value *exec.Value) error {
	var object nodes.Node
	var key *exec.Value
	switch target := s.target.(type) {
	case *nodes.Name:
		r.Environment.Context.Set(target.Name.Val, value.Interface())
		return nil
	case *nodes.GetAttribute:
		object, key = target.Node, exec.AsValue(target.Attribute)
	case *nodes.GetItem:
		object, key = target.Node, r.Eval(target.Arg)
	default:
		return errors.New("set cannot assign to this expression: use a name, an attribute or an item")
	}
	owner := r.Eval(object)
	for _, v := range []*exec.Value{owner, key} {
		if v.IsError() {
			return v
		}
	}
	return owner.Set(key, value.Interface())
}

// A withStatement is the statement {% with name = value, … %}body{% endwith %}.
type withStatement struct {
	at    *tokens.Token
	pairs []*nodes.Pair
	body  *nodes.Wrapper
}

func (s *withStatement) Position() *tokens.Token { return s.at }
func (s *withStatement) String() string          { return "with" }

func parseWith(p, args *parser.Parser) (nodes.ControlStructure, error) {
	s := &withStatement{at: p.Current()}
	for !args.End() {
		name := args.Match(tokens.Name)
		if name == nil || args.Match(tokens.Assign) == nil {
			return nil, args.Error("expected name = value", args.Current())
		}
		value, err := args.ParseExpression()
		if err != nil {
			return nil, err
		}
		s.pairs = append(s.pairs, &nodes.Pair{Key: &nodes.String{Location: name, Val: name.Val}, Value: value})
		if args.Match(tokens.Comma) == nil {
			break
		}
	}
	if !args.End() {
		return nil, args.Error("malformed with: expected 'with name = value'", args.Current())
	}
	var end *parser.Parser
	var err error
	if s.body, end, err = p.WrapUntil("endwith"); err == nil && !end.End() {
		err = end.Error("endwith takes no arguments", nil)
	}
	return s, err
}

// Execute implements exec.ControlStructure.
func (s *withStatement) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	sub := r.Inherit()
	for _, pair := range s.pairs {
		value := r.Eval(pair.Value)
		if value.IsError() {
			return value
		}
		sub.Environment.Context.Set(pair.Key.(*nodes.String).Val, value)
	}
	return sub.ExecuteWrapper(s.body)
}
