package chat

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/exec"

	"anneal/domain"
)

// maxRange is the maximum length of the result of range(), MAX_RANGE in Jinja's sandbox.
const maxRange = 100_000

// raise implements raise_exception(), by which a template rejects a conversation.
func (r *rendering) raise(_ *exec.Evaluator, a *exec.VarArgs) (any, error) {
	r.rejection = a.First().String()
	return nil, errors.New(r.rejection)
}

// renderError returns the InvalidArgument error for a rendering that failed with err. If the
// template called raise_exception, the error contains its argument.
func (r *rendering) renderError(err error) error {
	if r.rejection != "" {
		return domain.Errorf(domain.InvalidArgument, "messages: the model's chat template rejects this conversation: %s",
			short(errors.New(r.rejection)))
	}
	if r.cause != nil {
		err = r.cause
	}
	return domain.Errorf(domain.InvalidArgument,
		"messages: the model's chat template cannot render this conversation: %s", short(err))
}

// short returns the text of err on one line. If the text is longer than 300 characters, it returns
// the last 300.
func short(err error) string {
	text := []rune(strings.Join(strings.Fields(err.Error()), " "))
	if len(text) > 300 {
		return "… " + string(text[len(text)-300:]) // gonja's errors end with the cause
	}
	return string(text)
}

// A rendering is the state of one rendering of a template.
type rendering struct {
	budget
	order     keyOrder
	rejection string // message that the template passed to raise_exception; "" if it did not call it
	cause     error  // first error in an expression, which gonja's own error does not contain
}

// environment returns the functions, filters and tests of Jinja that transformers defines for chat
// templates, with limits.
func environment(state *rendering) *exec.Environment {
	globals := exec.EmptyContext().Update(builtins.GlobalFunctions).Update(builtins.GlobalVariables)
	globals.Set("raise_exception", state.raise)
	globals.Set("strftime_now", func(_ *exec.Evaluator, a *exec.VarArgs) (string, error) {
		return strftime(time.Now(), a.First().String()), nil
	})
	globals.Set("range", rangeOf)
	globals.Set("lipsum", nil)
	filters := exec.NewFilterSet(map[string]exec.FilterFunction{}).Update(builtins.Filters)
	own := map[string]exec.FilterFunction{"tojson": state.toJSON, "items": state.items}
	for _, name := range amplifiers.filters {
		filter, _ := filters.Get(name)
		own[name] = state.filter(filter)
	}
	for name, filter := range own {
		if err := filters.Replace(name, filter); err != nil {
			panic(err) // unreachable, because gonja defines these filters
		}
	}
	for name, filter := range map[string]exec.FilterFunction{
		"bounded": state.bounded, "output": state.output, "iterated": state.iterated, "times": state.times,
		"fromEnd": state.fromEnd,
	} {
		if err := filters.Register(name, filter); err != nil {
			panic(err) // unreachable, because gonja does not define these filters
		}
	}
	methods := builtins.Methods
	methods.Dict, methods.Str, methods.List = state.methods(), state.text(),
		exec.NewMethodSet(map[string]exec.Method[[]any]{})
	return &exec.Environment{
		Context: globals, Filters: filters, Tests: builtins.Tests, ControlStructures: statements(state), Methods: methods,
	}
}

// rangeOf implements the function range(), limited to maxRange numbers.
func rangeOf(_ *exec.Evaluator, a *exec.VarArgs) ([]int, error) {
	start, stop, step := 0, 0, 1
	at := func(i int) int { return a.Args[i].Integer() }
	switch len(a.Args) {
	case 1:
		stop = at(0)
	case 2:
		start, stop = at(0), at(1)
	case 3:
		start, stop, step = at(0), at(1), at(2)
	}
	if step == 0 {
		return nil, errors.New("range() needs a step other than 0")
	}
	numbers := []int{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(numbers) == maxRange {
			return nil, fmt.Errorf("range() has more than %d numbers", maxRange)
		}
		numbers = append(numbers, i)
	}
	return numbers, nil
}

// text returns the methods of strings. Arguments that are optional in Python, but required by
// gonja's methods, get Python's defaults.
func (r *rendering) text() *exec.MethodSet[string] {
	methods := map[string]exec.Method[string]{}
	for _, name := range strings.Fields(
		"capitalize count endswith find format isalnum isalpha isdigit islower isspace isupper join ljust lower lstrip " +
			"partition removeprefix removesuffix replace rfind rjust rpartition rsplit rstrip split splitlines startswith " +
			"strip swapcase title upper zfill") {
		if method, ok := builtins.Methods.Str.Get(name); ok {
			methods[name] = method
		}
	}
	fill := func(name string, rest func(self string) []any) {
		original := methods[name]
		methods[name] = func(self string, value *exec.Value, a *exec.VarArgs) (any, error) {
			defaults := rest(self)
			for len(a.Args) < len(defaults) && defaults[len(a.Args)] != nil {
				a.Args = append(a.Args, exec.AsValue(defaults[len(a.Args)]))
			}
			return original(self, value, a)
		}
	}
	fill("replace", func(string) []any { return []any{nil, nil, -1} })
	for _, name := range []string{"find", "rfind"} {
		fill(name, func(self string) []any { return []any{nil, 0, utf8.RuneCountInString(self)} })
	}
	for _, name := range amplifiers.methods {
		methods[name] = r.method(methods[name])
	}
	return exec.NewMethodSet(methods)
}

// methods returns the methods of objects. They return keys in the order of the JSON source. As in
// the sandbox of transformers, no method modifies its object.
func (r *rendering) methods() *exec.MethodSet[map[string]any] {
	ordered := func(of func(map[string]any) any) exec.Method[map[string]any] {
		return func(self map[string]any, value *exec.Value, _ *exec.VarArgs) (any, error) {
			if own, ok := value.Interface().(map[string]any); ok {
				self = own // self may be a copy, for which no order of the keys is recorded
			}
			return of(self), nil
		}
	}
	methods := map[string]exec.Method[map[string]any]{
		"keys":   ordered(func(o map[string]any) any { return r.order.keys(o) }),
		"items":  ordered(func(o map[string]any) any { return r.pairs(o) }),
		"values": ordered(func(o map[string]any) any { return r.values(o) }),
	}
	for _, name := range []string{"get", "copy"} {
		if method, ok := builtins.Methods.Dict.Get(name); ok {
			methods[name] = method
		}
	}
	return exec.NewMethodSet(methods)
}

func (r *rendering) values(object map[string]any) []any {
	values := []any{}
	for _, key := range r.order.keys(object) {
		values = append(values, object[key])
	}
	return values
}

func (r *rendering) pairs(object map[string]any) []any {
	pairs := []any{}
	for _, key := range r.order.keys(object) {
		pairs = append(pairs, []any{key, object[key]})
	}
	return pairs
}

// items implements the filter "items", which returns the [key, value] pairs of an object.
func (r *rendering) items(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	object, ok := in.Interface().(map[string]any)
	if in.IsError() || !ok && !in.IsNil() {
		return exec.AsValue(errors.New(`the filter "items" needs an object`))
	}
	return exec.AsValue(r.pairs(object))
}

// toJSON implements the filter "tojson" of transformers: json.dumps with ensure_ascii=False and
// without escapes for HTML.
func (r *rendering) toJSON(_ *exec.Evaluator, in *exec.Value, a *exec.VarArgs) *exec.Value {
	if in.IsError() {
		return in
	}
	indent := -1
	given := a.GetKeywordArgument("indent", nil)
	if len(a.Args) > 0 {
		given = a.Args[0]
	}
	if given != nil && given.IsInteger() {
		indent = min(given.Integer(), 16)
	}
	w := jsonWriter{order: r.order, indent: indent}
	_, err := weigh(in)
	if err == nil {
		err = w.write(goValue(in), 0)
	}
	if err = errors.Join(err, r.allocate(w.Len())); err != nil {
		return exec.AsValue(err)
	}
	return exec.AsSafeValue(w.String())
}

// strftime formats a time with the directives of C's strftime that templates use.
func strftime(t time.Time, format string) string {
	layouts := map[byte]string{
		'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'e': "_2", 'b': "Jan", 'B': "January", 'a': "Mon", 'A': "Monday",
		'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'Z': "MST", 'z': "-0700", 'F': "2006-01-02", 'T': "15:04:05",
		'j': "002",
	}
	var out strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			out.WriteByte(format[i])
			continue
		}
		i++
		// A directive with a minus sign, such as %-d, omits leading zeros.
		bare := format[i] == '-' && i+1 < len(format)
		if bare {
			i++
		}
		layout, ok := layouts[format[i]]
		text := t.Format(layout)
		switch {
		case !ok:
			text = string(format[i])
		case bare:
			text = strings.TrimLeft(text[:len(text)-1], "0") + text[len(text)-1:]
		}
		out.WriteString(text)
	}
	return out.String()
}
