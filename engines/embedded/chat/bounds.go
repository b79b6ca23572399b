package chat

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/nikolalohinski/gonja/v2/builtins"
	structures "github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// What a template may use in one rendering. Its interpreter knows no bounds,
// and a stack or a memory that overflows ends the whole process: recover does
// not help.
const (
	renderWithin = 5 * time.Second
	maxCalls     = 200      // macros that have one another called
	maxValue     = 16 << 20 // bytes of one value, as walked
	maxMade      = 256 << 20
	maxItems     = 1 << 20 // of what is gone through
	maxProduct   = 1 << 30 // bytes that one filter or method may make in the worst case
)

var errTooMuch = fmt.Errorf("it makes a value of more than %d bytes", maxValue)

// budget is what a rendering has used.
type budget struct {
	until time.Time
	calls int
	made  int // bytes shown, also by macros, and made by what can make much of little
}

func (b *budget) make(bytes int) error {
	if b.made += bytes; b.made > maxMade {
		return fmt.Errorf("it makes more than %d bytes of text", maxMade)
	}
	return nil
}

// tick ends a rendering that takes too long. One stands at the beginning of
// every body.
func (r *rendering) tick() error {
	if time.Now().After(r.until) {
		return fmt.Errorf("it takes longer than %v", renderWithin)
	}
	return nil
}

// A beginning is the tick of a body.
type beginning struct {
	at  *tokens.Token
	now *rendering
}

func (s beginning) Position() *tokens.Token { return s.at }
func (beginning) String() string            { return "the beginning of a body" }

func (s beginning) Execute(*exec.Renderer, *nodes.ControlStructureBlock) error { return s.now.tick() }

// A definition is a macro: what it defines counts how deep its calls are.
type definition struct {
	*structures.MacroControlStructure
	now *rendering
}

func (d *definition) Execute(r *exec.Renderer, tag *nodes.ControlStructureBlock) error {
	if err := d.MacroControlStructure.Execute(r, tag); err != nil {
		return err
	}
	value, _ := r.Environment.Context.Get(d.Name)
	macro, ok := value.(exec.Macro)
	if !ok {
		return errors.New("a macro is none")
	}
	r.Environment.Context.Set(d.Name, exec.Macro(func(params *exec.VarArgs) *exec.Value {
		if d.now.calls == maxCalls {
			return exec.AsValue(fmt.Errorf("its macros call one another more than %d deep", maxCalls))
		}
		d.now.calls++
		defer func() { d.now.calls-- }()
		return macro(params)
	}))
	return nil
}

// An assignment is a set: what holds itself, or is too large, ends the
// rendering before anybody walks through it.
type assignment struct {
	exec.ControlStructure
	name string
}

func (a *assignment) Execute(r *exec.Renderer, tag *nodes.ControlStructureBlock) error {
	if err := a.ControlStructure.Execute(r, tag); err != nil {
		return err
	}
	value, _ := r.Environment.Context.Get(a.name)
	_, err := weigh(value)
	return err
}

// statements are those of Jinja that a template needs. What would load other
// templates, or have a part of this one begin itself anew, is not among them.
func statements(now *rendering) *exec.ControlStructureSet {
	known := map[string]parser.ControlStructureParser{}
	for _, name := range []string{"if", "raw", "with", "do", "break", "continue"} {
		known[name], _ = builtins.ControlStructures.Get(name)
	}
	ofFor, _ := builtins.ControlStructures.Get("for")
	known["for"] = func(p, args *parser.Parser) (nodes.ControlStructure, error) {
		made, err := ofFor(p, args)
		if loop, ok := made.(*structures.ForControlStructure); ok && loop.Recursive {
			return nil, errors.New("loops that call themselves are not supported: use a macro")
		}
		return made, err
	}
	ofMacro, _ := builtins.ControlStructures.Get("macro")
	known["macro"] = func(p, args *parser.Parser) (nodes.ControlStructure, error) {
		made, err := ofMacro(p, args)
		if macro, ok := made.(*structures.MacroControlStructure); ok {
			return &definition{macro, now}, err
		}
		return made, err
	}
	ofSet, _ := builtins.ControlStructures.Get("set")
	known["set"] = func(p, args *parser.Parser) (nodes.ControlStructure, error) {
		name := ""
		if target := args.Current(); target != nil {
			name = target.Val
		}
		made, err := ofSet(p, args)
		if set, ok := made.(exec.ControlStructure); ok {
			return &assignment{set, name}, err
		}
		return made, err
	}
	return exec.NewControlStructureSet(known)
}

// weigh is about how many bytes a value would be as text. It is an error when
// they are more than maxValue, or nested more than maxDepth deep, as what holds
// itself is.
func weigh(value any) (int, error) {
	left := maxValue
	err := weighDown(value, &left, 0)
	return maxValue - left, err
}

func weighDown(value any, left *int, depth int) (err error) {
	if err := tooDeep(depth); err != nil {
		return err
	}
	each := func(values ...any) {
		for _, one := range values {
			if err == nil {
				err = weighDown(one, left, depth+1)
			}
		}
	}
	*left -= 8
	switch value := value.(type) {
	case nil:
	case string:
		*left -= len(value)
	case *exec.Value:
		if value != nil && value.Val.IsValid() && value.Val.CanInterface() {
			return weighDown(value.Interface(), left, depth)
		}
	case *exec.Dict:
		for _, pair := range value.Pairs {
			each(pair.Key, pair.Value)
		}
	case *exec.Pair:
		each(value.Key, value.Value)
	case exec.ValuesList:
		for i := 0; i < len(value) && err == nil && *left >= 0; i++ {
			each(value[i])
		}
	case []any:
		for i := 0; i < len(value) && err == nil && *left >= 0; i++ {
			each(value[i])
		}
	case map[string]any:
		for key, one := range value {
			each(key, one)
		}
	default:
		switch v := reflect.ValueOf(value); v.Kind() { // the library has types of its own
		case reflect.String:
			*left -= v.Len()
		case reflect.Slice, reflect.Array:
			for i := 0; i < v.Len() && err == nil && *left >= 0; i++ {
				each(v.Index(i).Interface())
			}
		case reflect.Map:
			for _, key := range v.MapKeys() {
				each(key.Interface(), v.MapIndex(key).Interface())
			}
		}
	}
	if err == nil && *left < 0 {
		return errTooMuch
	}
	return err
}

// bounded is a filter that lets through what is not too large.
func (r *rendering) bounded(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	if in.IsError() {
		return r.failed(in)
	}
	if _, err := weigh(in); err != nil {
		return exec.AsValue(err)
	}
	if err := r.tick(); err != nil {
		return exec.AsValue(err)
	}
	return in
}

// failed remembers the first error.
func (r *rendering) failed(in *exec.Value) *exec.Value {
	if err, ok := in.Interface().(error); ok && r.cause == nil {
		r.cause = err
	}
	return in
}

// shown is bounded for what is written, which is counted.
func (r *rendering) shown(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	if in.IsError() {
		return r.failed(in)
	}
	bytes, err := weigh(in)
	if err = errors.Join(err, r.make(bytes), r.tick()); err != nil {
		return exec.AsValue(err)
	}
	return in
}

// walked is bounded for what a loop goes through.
func (r *rendering) walked(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	if !in.IsError() && (in.IsString() || in.IsList()) && in.Len() > maxItems {
		return exec.AsValue(fmt.Errorf("it goes through more than %d items", maxItems))
	}
	return in
}

// fromEnd is the item so far from the end of a list or text, from 1.
func (r *rendering) fromEnd(_ *exec.Evaluator, in *exec.Value, a *exec.VarArgs) *exec.Value {
	if in.IsError() {
		return in
	}
	by := a.First()
	if !by.IsInteger() || !in.IsList() && !in.IsString() {
		return exec.AsValue(errors.New("what is counted from the end must be a list or text, and the count a whole number"))
	}
	if at := in.Len() - by.Integer(); at >= 0 && at < in.Len() {
		return in.Index(at)
	}
	return exec.AsValue(nil)
}

// times is multiplication.
func (r *rendering) times(_ *exec.Evaluator, in *exec.Value, a *exec.VarArgs) *exec.Value {
	by := a.First()
	switch {
	case in.IsError():
		return in
	case by.IsError():
		return by
	case in.IsString():
		text, n := in.String(), max(0, by.Integer())
		if n > 0 && len(text) > maxValue/n {
			return exec.AsValue(errTooMuch)
		}
		return exec.AsValue(strings.Repeat(text, n))
	case in.IsFloat() || by.IsFloat():
		return exec.AsValue(in.Float() * by.Float())
	}
	return exec.AsValue(in.Integer() * by.Integer())
}

// amplifiers are the filters and methods that can make much of little, and
// those that go through each byte of a text.
var amplifiers = struct{ filters, methods []string }{
	strings.Fields("batch center format groupby indent join list map random replace reverse slice sort truncate unique urlize wordwrap xmlattr"),
	strings.Fields("center count format join ljust partition replace rjust rpartition rsplit split splitlines zfill"),
}

// filter is one of the library's within bounds.
func (r *rendering) filter(own exec.FilterFunction) exec.FilterFunction {
	return func(e *exec.Evaluator, in *exec.Value, a *exec.VarArgs) *exec.Value {
		if in.IsError() {
			return own(e, in, a)
		}
		if err := r.within(in, a); err != nil {
			return exec.AsValue(err)
		}
		out := own(e, in, a)
		if size, err := weigh(out); !out.IsError() && errors.Join(err, r.make(size)) != nil {
			return exec.AsValue(errTooMuch)
		}
		return out
	}
}

// method is one of the library's within bounds.
func (r *rendering) method(own exec.Method[string]) exec.Method[string] {
	return func(self string, value *exec.Value, a *exec.VarArgs) (any, error) {
		if err := r.within(value, a); err != nil {
			return nil, err
		}
		return own(self, value, a)
	}
}

// within tells whether what can make much of little stays within bounds: of a
// text, a text for each byte, and numbers for widths.
func (r *rendering) within(in *exec.Value, a *exec.VarArgs) error {
	size, err := weigh(in)
	each := 1
	count := func(arg *exec.Value) {
		bytes, tooMuch := weigh(arg)
		if err = errors.Join(err, tooMuch); arg.IsInteger() {
			bytes = max(0, min(arg.Integer(), math.MaxInt32))
		}
		each += bytes
	}
	for _, arg := range a.Args {
		count(arg)
	}
	for _, arg := range a.KwArgs {
		count(arg)
	}
	switch {
	case err != nil:
		return err
	case size > maxProduct/each:
		return errTooMuch
	}
	return r.tick()
}
