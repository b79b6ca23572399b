package chat

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// Limits of one rendering of a template. gonja, the Jinja library, has no limits, and a Go process
// cannot recover from a stack overflow or from running out of memory.
const (
	renderWithin = 5 * time.Second
	maxCalls     = 200       // maximum depth of nested macro calls
	maxValue     = 16 << 20  // maximum size of one value in bytes, see weigh
	maxAllocated = 256 << 20 // maximum size of all rendered text and values, in bytes
	maxItems     = 1 << 20   // maximum number of iterations of a loop
	maxProduct   = 1 << 30   // maximum size in bytes that a filter or method could create in the worst case
)

var errTooLarge = fmt.Errorf("a value in the template has more than %d bytes", maxValue)

// A budget counts the resources that a rendering has used so far.
type budget struct {
	until time.Time
	calls int // current depth of nested macro calls
	// allocated is the size in bytes of all rendered text, including the text of macros, and of the
	// results of the filters and methods in amplifiers.
	allocated int
}

func (b *budget) allocate(bytes int) error {
	if b.allocated += bytes; b.allocated > maxAllocated {
		return fmt.Errorf("the template creates more than %d bytes of text", maxAllocated)
	}
	return nil
}

// tick returns an error if the deadline of the rendering has passed.
func (r *rendering) tick() error {
	if time.Now().After(r.until) {
		return fmt.Errorf("the template takes longer than %v to render", renderWithin)
	}
	return nil
}

// weigh returns an estimate of the size of a value as text, in bytes. It returns an error if the
// size exceeds maxValue or the nesting exceeds maxDepth, for example because the value contains
// itself.
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
		switch v := reflect.ValueOf(value); v.Kind() { // values of other types, which gonja creates
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
		return errTooLarge
	}
	return err
}

// bounded is a filter that returns its input unchanged. It returns an error instead if the input is
// too large or the deadline has passed.
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

// failed records the error of in, if it is the first one of the rendering, and returns in.
func (r *rendering) failed(in *exec.Value) *exec.Value {
	if err, ok := in.Interface().(error); ok && r.cause == nil {
		r.cause = err
	}
	return in
}

// output is a filter for values that are rendered as text. It adds the size of its input to
// r.allocated, and returns the input. It returns an error instead if the input is too large, the
// deadline has passed, or r.allocated exceeds maxAllocated.
func (r *rendering) output(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	if in.IsError() {
		return r.failed(in)
	}
	bytes, err := weigh(in)
	if err = errors.Join(err, r.allocate(bytes), r.tick()); err != nil {
		return exec.AsValue(err)
	}
	return in
}

// iterated is a filter for the sequence over which a loop iterates. It returns its input unchanged,
// or an error if the input has more than maxItems items.
func (r *rendering) iterated(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	if !in.IsError() && (in.IsString() || in.IsList()) && in.Len() > maxItems {
		return exec.AsValue(fmt.Errorf("the template loops over more than %d items", maxItems))
	}
	return in
}

// fromEnd is a filter that implements negative indices of lists and strings. Its argument is the
// index without the sign: 1 selects the last item.
func (r *rendering) fromEnd(_ *exec.Evaluator, in *exec.Value, a *exec.VarArgs) *exec.Value {
	if in.IsError() {
		return in
	}
	by := a.First()
	if !by.IsInteger() || !in.IsList() && !in.IsString() {
		return exec.AsValue(errors.New("a negative index must be an integer, and apply to a list or string"))
	}
	if at := in.Len() - by.Integer(); at >= 0 && at < in.Len() {
		return in.Index(at)
	}
	return exec.AsValue(nil)
}

// times is a filter that multiplies its input by its argument. It returns an error if the input is
// a string and the result would exceed maxValue bytes.
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
			return exec.AsValue(errTooLarge)
		}
		return exec.AsValue(strings.Repeat(text, n))
	case in.IsFloat() || by.IsFloat():
		return exec.AsValue(in.Float() * by.Float())
	}
	return exec.AsValue(in.Integer() * by.Integer())
}

// amplifiers are the filters and methods of gonja whose output can be much larger than their input,
// or whose running time can grow faster than the size of their input.
var amplifiers = struct{ filters, methods []string }{
	strings.Fields("batch center format groupby indent join list map random replace reverse slice sort truncate " +
		"unique urlize wordwrap xmlattr"),
	strings.Fields("center count format join ljust partition replace rjust rpartition rsplit split splitlines zfill"),
}

// filter returns a filter that calls original, a filter of gonja, and limits the sizes of the input
// and the output.
func (r *rendering) filter(original exec.FilterFunction) exec.FilterFunction {
	return func(e *exec.Evaluator, in *exec.Value, a *exec.VarArgs) *exec.Value {
		if in.IsError() {
			return original(e, in, a)
		}
		if err := r.within(in, a); err != nil {
			return exec.AsValue(err)
		}
		out := original(e, in, a)
		if size, err := weigh(out); !out.IsError() && errors.Join(err, r.allocate(size)) != nil {
			return exec.AsValue(errTooLarge)
		}
		return out
	}
}

// method returns a string method that calls original, a method of gonja, and limits the size of the
// input.
func (r *rendering) method(original exec.Method[string]) exec.Method[string] {
	return func(self string, value *exec.Value, a *exec.VarArgs) (any, error) {
		if err := r.within(value, a); err != nil {
			return nil, err
		}
		return original(self, value, a)
	}
}

// within returns an error if an amplifier may create more than maxProduct bytes from the input in
// and the arguments a. It assumes the worst case: each byte of the input is replaced by all string
// arguments and by as many bytes as the sum of the integer arguments.
func (r *rendering) within(in *exec.Value, a *exec.VarArgs) error {
	size, err := weigh(in)
	each := 1
	count := func(arg *exec.Value) {
		bytes, tooLarge := weigh(arg)
		if err = errors.Join(err, tooLarge); arg.IsInteger() {
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
		return errTooLarge
	}
	return r.tick()
}
