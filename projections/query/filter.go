package query

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.einride.tech/aip/filtering"
	expr "google.golang.org/genproto/googleapis/api/expr/v1alpha1"

	"anneal/domain"
)

// Limits of a filter.
const (
	MaxFilter      = 4096 // bytes
	MaxFilterDepth = 64   // of parentheses
)

// Filter compiles an AIP-160 filter; the empty one matches everything.
//
//	state = READY AND createTime > "2026-03-01T00:00:00Z"
//	displayName = "llama*" OR baseModel:llama
//	NOT status.code = OK, -enableAddons = true
//	tags:red, notes:key, notes.key = value, notes.key:*
//	state = (CREATING OR READY)
//
// OR binds tighter than AND, as AIP-160 has it; what stands side by side must
// match both. = and != on text take * for any characters and are exact about
// case; : on text means "contains", whatever the case, and :* that a field is
// set and not empty. < and > also compare text. What is absent equals nothing
// and so fulfils every !=. A word alone is looked for in all texts. A text that
// is one of a list of values, as a state is, is compared with those only.
//
// An error is a fault, InvalidArgument on "filter".
func (f *Fields[R]) Filter(filter string) (func(*R) bool, error) {
	matches, err := f.filter(filter)
	if err != nil {
		return nil, err
	}
	return func(r *R) bool { return matches(reflect.ValueOf(r).Elem()) }, nil
}

func (f *Fields[R]) filter(filter string) (predicate, error) {
	matches, err := compileFilter(f.root, filter)
	if err != nil {
		var v domain.Violations
		v.Add("filter", "%v", err)
		return nil, v.Err()
	}
	return matches, nil
}

// A predicate looks at a struct.
type predicate func(reflect.Value) bool

func compileFilter(root *field, filter string) (predicate, error) {
	if strings.TrimSpace(filter) == "" {
		return func(reflect.Value) bool { return true }, nil
	}
	if len(filter) > MaxFilter {
		return nil, fmt.Errorf("is %d bytes long: at most %d are allowed", len(filter), MaxFilter)
	}
	spelled, origin, err := quoteArguments(filter)
	if err != nil {
		return nil, err
	}
	var parser filtering.Parser
	parser.Init(spelled)
	parsed, err := parser.Parse()
	if err != nil {
		return nil, syntax(err, filter, spelled, origin)
	}
	if err := operators(parsed.GetExpr()); err != nil {
		return nil, err
	}
	return compile(root, parsed.GetExpr())
}

// operators refuses an operator that is written as a function, with too few
// operands or too many: the parser lets AND(a) pass.
func operators(e *expr.Expr) error {
	call := e.GetCallExpr()
	if call == nil {
		return nil
	}
	want := len(call.GetArgs())
	switch call.GetFunction() {
	case filtering.FunctionAnd, filtering.FunctionFuzzyAnd, filtering.FunctionOr:
		want = 2
	case filtering.FunctionNot:
		want = 1
	}
	if len(call.GetArgs()) != want {
		return fmt.Errorf("%s is an operator and no function: write A AND B, A OR B, NOT A", call.GetFunction())
	}
	for _, arg := range call.GetArgs() {
		if err := operators(arg); err != nil {
			return err
		}
	}
	return nil
}

// syntax says where the innermost of the parser's errors happened, counted in
// characters from 1, and what belongs there. origin leads from the text that
// was parsed to the filter.
func syntax(err error, filter, parsed string, origin func(int) int) error {
	var at struct {
		filtering.Position
		known bool
	}
	message := "is not a filter"
	for ; err != nil; err = errors.Unwrap(err) {
		one, ok := err.(interface {
			Message() string
			Position() filtering.Position
		})
		if !ok {
			message = err.Error()
			continue
		}
		message, at.Position, at.known = one.Message(), one.Position(), true
	}
	const form = `; write it like state = READY AND displayName = "my *", with quotes around text that holds blanks or signs`
	blanks := len(parsed) - len(strings.TrimLeftFunc(parsed, unicode.IsSpace)) // which the parser does not count
	offset := origin(min(blanks+int(at.Offset), len(parsed)))
	if message == io.EOF.Error() || !at.known {
		offset = len(filter)
	}
	message = expected(message)
	rest, before := strings.TrimSpace(filter[offset:]), strings.TrimSpace(filter[:offset])
	if (rest == filtering.FunctionAnd || rest == filtering.FunctionOr) && before != "" && !strings.ContainsAny(before[len(before)-1:], "=<>:!") {
		message = "something is expected after " + rest
		offset += strings.Index(filter[offset:], rest)
	}
	return fmt.Errorf("cannot be read at character %d: %s%s", utf8.RuneCountInString(filter[:offset])+1, message, form)
}

// expected says in the caller's words what the parser misses.
func expected(message string) string {
	switch {
	case message == io.EOF.Error():
		return "it ends where a field, a word or a value is expected"
	case strings.HasPrefix(message, "unexpected trailing token "):
		return clip(strings.TrimPrefix(message, "unexpected trailing token ")) + " is not expected here, but AND, OR or the end"
	case strings.HasPrefix(message, "unexpected token "):
		return clip(strings.TrimPrefix(message, "unexpected token ")) + " stands where a field, a word or a value is expected"
	case message == "unable to unescape string":
		return `the \ begins no escape that is known: write \\ for a \ itself`
	case message == "expected )":
		return "a ) is expected"
	}
	return clip(message)
}

func compile(root *field, e *expr.Expr) (predicate, error) {
	call := e.GetCallExpr()
	if call == nil {
		return compileWord(root, e)
	}
	switch op := call.GetFunction(); op {
	case filtering.FunctionAnd, filtering.FunctionFuzzyAnd, filtering.FunctionOr:
		return compileChain(root, e, op == filtering.FunctionOr)
	case filtering.FunctionNot:
		inner, err := compile(root, call.GetArgs()[0])
		return func(v reflect.Value) bool { return !inner(v) }, err
	case "=", "!=", "<", "<=", ">", ">=", ":":
		return compileRestriction(root, op, call.GetArgs()[0], call.GetArgs()[1])
	default:
		return nil, fmt.Errorf("there is no function %q; compare a field instead, as in createTime > \"2026-03-01T00:00:00Z\"", clip(op))
	}
}

// compileChain makes one predicate of a row of ANDs, or of ORs, however long.
func compileChain(root *field, e *expr.Expr, or bool) (predicate, error) {
	var parts []predicate
	for _, operand := range operands(e, or) {
		one, err := compile(root, operand)
		if err != nil {
			return nil, err
		}
		parts = append(parts, one)
	}
	return func(v reflect.Value) bool {
		for _, one := range parts {
			if one(v) == or {
				return or
			}
		}
		return !or
	}, nil
}

// operands flattens a chain, which the parser nests to the left.
func operands(e *expr.Expr, or bool) []*expr.Expr {
	var reversed []*expr.Expr
	for {
		call := e.GetCallExpr()
		op := call.GetFunction()
		same := op == filtering.FunctionOr
		if !or {
			same = op == filtering.FunctionAnd || op == filtering.FunctionFuzzyAnd
		}
		if call == nil || !same {
			break
		}
		reversed = append(reversed, call.GetArgs()[1])
		e = call.GetArgs()[0]
	}
	all := []*expr.Expr{e}
	for i := len(reversed) - 1; i >= 0; i-- {
		all = append(all, reversed[i])
	}
	return all
}

func compileRestriction(root *field, op string, left, right *expr.Expr) (predicate, error) {
	parts, ok := dotted(left)
	parts, ok = named(root, parts, left.GetConstExpr().GetStringValue(), ok)
	if !ok {
		return nil, fmt.Errorf("the left side of %s must be a field, not a value", op)
	}
	p, err := root.resolve(parts)
	if err != nil {
		return nil, err
	}
	if p.lists() && op != ":" {
		return nil, fmt.Errorf("%s lies in a list: use %s:VALUE, which asks whether any element has it", p.name, p.name)
	}
	return compileArgument(p, op, right)
}

// compileArgument compiles field = (A OR B) as field = A OR field = B.
func compileArgument(p path, op string, arg *expr.Expr) (predicate, error) {
	if call := arg.GetCallExpr(); call != nil {
		var parts []predicate
		switch name := call.GetFunction(); name {
		case filtering.FunctionAnd, filtering.FunctionFuzzyAnd, filtering.FunctionOr:
			or := name == filtering.FunctionOr
			for _, operand := range operands(arg, or) {
				one, err := compileArgument(p, op, operand)
				if err != nil {
					return nil, err
				}
				parts = append(parts, one)
			}
			return func(v reflect.Value) bool {
				for _, one := range parts {
					if one(v) == or {
						return or
					}
				}
				return !or
			}, nil
		case filtering.FunctionNot:
			inner, err := compileArgument(p, op, call.GetArgs()[0])
			return func(v reflect.Value) bool { return !inner(v) }, err
		case filtering.FunctionTimestamp, filtering.FunctionDuration:
			if len(call.GetArgs()) == 1 {
				return compileArgument(p, op, call.GetArgs()[0])
			}
			return nil, fmt.Errorf("%s takes one value, as in %s(\"…\")", name, name)
		default:
			return nil, fmt.Errorf("%s can be compared with a value, not with %q", p.name, clip(name))
		}
	}
	value, ok := spelling(arg)
	if !ok {
		return nil, fmt.Errorf("%s must be compared with a value", p.name)
	}
	return comparison(p, op, value)
}

// compileWord looks for a word in all texts.
func compileWord(root *field, e *expr.Expr) (predicate, error) {
	if parts, ok := dotted(e); ok && root.shape != free {
		if p, err := root.resolve(parts); err == nil {
			return nil, fmt.Errorf("%s stands alone: compare it, as in %s = VALUE or %s:*, or put it in quotes to look for the word", p.name, p.name, p.name)
		}
	}
	if word := e.GetIdentExpr().GetName(); word == "and" || word == "or" || word == "not" {
		return nil, fmt.Errorf("%s in small letters is no operator: write %s, or %q in quotes to look for the word", word, strings.ToUpper(word), word)
	}
	word, ok := spelling(e)
	if !ok {
		return nil, errors.New("holds something that is neither a comparison nor a word")
	}
	if root.partial {
		return nil, errors.New("looks at all texts, of which only some are here")
	}
	found := contains(word)
	return func(v reflect.Value) bool { return searchTexts(root, v, found) }, nil
}

func searchTexts(f *field, v reflect.Value, found func(string) bool) bool {
	if v = pointee(v); !v.IsValid() {
		return false
	}
	switch f.shape {
	case text:
		return found(v.String())
	case free:
		return searchFree(v.Interface(), found)
	case message:
		for _, child := range f.ordered {
			if at := fieldAt(v, child.index); at.IsValid() && searchTexts(child, at, found) {
				return true
			}
		}
	case list:
		for i := range v.Len() {
			if searchTexts(f.elem, v.Index(i), found) {
				return true
			}
		}
	}
	return false
}

// dotted is the name that an expression spells: ident {"." field}.
func dotted(e *expr.Expr) ([]string, bool) {
	switch {
	case e.GetIdentExpr() != nil:
		return []string{e.GetIdentExpr().GetName()}, true
	case e.GetSelectExpr() != nil:
		parts, ok := dotted(e.GetSelectExpr().GetOperand())
		return append(parts, e.GetSelectExpr().GetField()), ok
	}
	return nil, false
}

// spelling is the value that an expression spells, as text.
func spelling(e *expr.Expr) (string, bool) {
	if parts, ok := dotted(e); ok {
		return strings.Join(parts, "."), true
	}
	switch c := e.GetConstExpr().GetConstantKind().(type) {
	case *expr.Constant_StringValue:
		return c.StringValue, true
	case *expr.Constant_Int64Value:
		return strconv.FormatInt(c.Int64Value, 10), true
	case *expr.Constant_DoubleValue:
		return strconv.FormatFloat(c.DoubleValue, 'g', -1, 64), true
	}
	return "", false
}
