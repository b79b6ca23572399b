package query

import (
	"errors"
	"fmt"
	"io"
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
	MaxFilter      = 4096 // maximum length of a filter in bytes
	MaxFilterDepth = 64   // maximum depth of nested parentheses in a filter
)

// Filter compiles an AIP-160 filter into a function that reports whether a value matches. The empty
// filter matches all values.
//
//	state = READY AND createTime > "2026-03-01T00:00:00Z"
//	displayName = "llama*" OR baseModel:llama
//	NOT status.code = OK, -enableAddons = true
//	tags:red, notes:key, notes.key = value, notes.key:*
//	state = (CREATING OR READY)
//
// OR binds tighter than AND, as in AIP-160. Adjacent terms are combined with AND. On text, = and !=
// are case-sensitive, and a * in the value stands for any characters; : means "contains", ignoring
// case; < and > compare bytewise. field:* matches when the field is set and not empty. An absent
// field equals no value, so it matches every !=. A word without a field matches when any text
// contains it. A text with a list of allowed values, such as a state, can be compared only with
// these values.
//
// The error is a domain.Error with code InvalidArgument and a violation of the field "filter".
func (f *Fields[R]) Filter(filter string) (func(*R) bool, error) {
	matches, err := filterOf(&scope{root: f.root}, filter)
	if err != nil {
		return nil, err
	}
	return func(r *R) bool { return matches.row(renderedCandidate(r)) }, nil
}

func filterOf(c *scope, filter string) (predicate, error) {
	matches, err := compileFilter(c, filter)
	if err != nil {
		var v domain.Violations
		v.Add("filter", "%v", err)
		return predicate{}, v.Err()
	}
	return matches, nil
}

func compileFilter(c *scope, filter string) (predicate, error) {
	if strings.TrimSpace(filter) == "" {
		return rowPredicate(func(*candidate) bool { return true }), nil
	}
	if len(filter) > MaxFilter {
		return predicate{}, fmt.Errorf("has %d bytes: at most %d are allowed", len(filter), MaxFilter)
	}
	spelled, origin, err := quoteArguments(filter)
	if err != nil {
		return predicate{}, err
	}
	var parser filtering.Parser
	parser.Init(spelled)
	parsed, err := parser.Parse()
	if err != nil {
		return predicate{}, syntax(err, filter, spelled, origin)
	}
	if err := operators(parsed.GetExpr()); err != nil {
		return predicate{}, err
	}
	return compile(c, parsed.GetExpr())
}

// operators returns an error for an operator that is written as a function with a wrong number of
// operands, such as AND(a), which the parser accepts.
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
		return fmt.Errorf("%s is an operator, not a function: write A AND B, A OR B, NOT A", call.GetFunction())
	}
	for _, arg := range call.GetArgs() {
		if err := operators(arg); err != nil {
			return err
		}
	}
	return nil
}

// syntax returns the error for the user from err, an error of the parser: the position of the
// innermost error, in characters from 1, and what is expected there. parsed is the text that was
// parsed; origin maps an offset in it to the offset in filter.
func syntax(err error, filter, parsed string, origin func(int) int) error {
	var at struct {
		filtering.Position
		known bool
	}
	problem := "the text is not a filter"
	for ; err != nil; err = errors.Unwrap(err) {
		one, ok := err.(interface {
			Message() string
			Position() filtering.Position
		})
		if !ok {
			problem = err.Error()
			continue
		}
		problem, at.Position, at.known = one.Message(), one.Position(), true
	}
	const form = `; write it like state = READY AND displayName = "my *", with quotes around text with spaces or signs`
	// the parser does not count leading blanks
	blanks := len(parsed) - len(strings.TrimLeftFunc(parsed, unicode.IsSpace))
	offset := origin(min(blanks+int(at.Offset), len(parsed)))
	if problem == io.EOF.Error() || !at.known {
		offset = len(filter)
	}
	problem = expected(problem)
	rest, before := strings.TrimSpace(filter[offset:]), strings.TrimSpace(filter[:offset])
	if (rest == filtering.FunctionAnd || rest == filtering.FunctionOr) && before != "" &&
		!strings.ContainsAny(before[len(before)-1:], "=<>:!") {
		problem = "a term is expected after " + rest
		offset += strings.Index(filter[offset:], rest)
	}
	return fmt.Errorf("has a syntax error at character %d: %s%s", utf8.RuneCountInString(filter[:offset])+1, problem, form)
}

// expected translates a message of the parser for the user.
func expected(problem string) string {
	switch {
	case problem == io.EOF.Error():
		return "it ends where a field, a word or a value is expected"
	case strings.HasPrefix(problem, "unexpected trailing token "):
		return clip(strings.TrimPrefix(problem, "unexpected trailing token ")) +
			" is not expected here: write AND or OR, or end the filter"
	case strings.HasPrefix(problem, "unexpected token "):
		return clip(strings.TrimPrefix(problem, "unexpected token ")) +
			" is not expected here: write a field, a word or a value"
	case problem == "unable to unescape string":
		return `unknown escape: write \\ for a backslash`
	case problem == "expected )":
		return "a closing parenthesis is expected here"
	}
	return clip(problem)
}

func compile(c *scope, e *expr.Expr) (predicate, error) {
	call := e.GetCallExpr()
	if call == nil {
		return compileWord(c, e)
	}
	switch op := call.GetFunction(); op {
	case filtering.FunctionAnd, filtering.FunctionFuzzyAnd, filtering.FunctionOr:
		return compileChain(c, e, op == filtering.FunctionOr)
	case filtering.FunctionNot:
		inner, err := compile(c, call.GetArgs()[0])
		return inner.not(), err
	case "=", "!=", "<", "<=", ">", ">=", ":":
		return compileRestriction(c, op, call.GetArgs()[0], call.GetArgs()[1])
	default:
		return predicate{}, fmt.Errorf("unknown function %q; compare a field instead, as in createTime > "+
			"\"2026-03-01T00:00:00Z\"", clip(op))
	}
}

// compileChain compiles an expression of operands that are joined by OR if the parameter or is
// true, otherwise by AND.
func compileChain(c *scope, e *expr.Expr, or bool) (predicate, error) {
	var parts []predicate
	for _, operand := range operands(e, or) {
		one, err := compile(c, operand)
		if err != nil {
			return predicate{}, err
		}
		parts = append(parts, one)
	}
	return join(parts, or), nil
}

// operands returns the operands of an expression that are joined by OR if the parameter or is true,
// otherwise by AND. The parser nests such an expression to the left.
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

func compileRestriction(c *scope, op string, left, right *expr.Expr) (predicate, error) {
	parts, ok := dotted(left)
	parts, ok = named(c.root, parts, left.GetConstExpr().GetStringValue(), ok)
	if !ok {
		return predicate{}, fmt.Errorf("the left side of %s must be a field, not a value", op)
	}
	p, err := c.resolve(parts)
	if err != nil {
		return predicate{}, err
	}
	if p.lists() && op != ":" {
		return predicate{}, fmt.Errorf("%s is in a list: use %s:VALUE, which tests whether any element of the list has "+
			"this value", p.name, p.name)
	}
	return compileArgument(p, op, right)
}

// compileArgument compiles the comparison of the field at p with an argument, which is a value, or
// values joined by operators: field = (A OR B) means field = A OR field = B.
func compileArgument(p path, op string, arg *expr.Expr) (predicate, error) {
	if call := arg.GetCallExpr(); call != nil {
		var parts []predicate
		switch name := call.GetFunction(); name {
		case filtering.FunctionAnd, filtering.FunctionFuzzyAnd, filtering.FunctionOr:
			or := name == filtering.FunctionOr
			for _, operand := range operands(arg, or) {
				one, err := compileArgument(p, op, operand)
				if err != nil {
					return predicate{}, err
				}
				parts = append(parts, one)
			}
			return join(parts, or), nil
		case filtering.FunctionNot:
			inner, err := compileArgument(p, op, call.GetArgs()[0])
			return inner.not(), err
		case filtering.FunctionTimestamp, filtering.FunctionDuration:
			if len(call.GetArgs()) == 1 {
				return compileArgument(p, op, call.GetArgs()[0])
			}
			return predicate{}, fmt.Errorf("the function %s takes one value, as in %s(\"…\")", name, name)
		default:
			return predicate{}, fmt.Errorf("%s can be compared only with a value, not with the expression %q", p.name,
				clip(name))
		}
	}
	value, ok := spelling(arg)
	if !ok {
		return predicate{}, fmt.Errorf("%s must be compared with a value, such as READY", p.name)
	}
	return comparison(p, op, value)
}

// compileWord compiles a word without a field into a predicate that reports whether any text
// contains the word.
func compileWord(c *scope, e *expr.Expr) (predicate, error) {
	if parts, ok := dotted(e); ok && c.root.shape != anyJSON {
		if p, err := c.resolve(parts); err == nil {
			return predicate{}, fmt.Errorf("%s is a field: compare it, as in %s = VALUE or %s:*, or put it in quotes to "+
				"search for the word", p.name, p.name, p.name)
		}
	}
	if word := e.GetIdentExpr().GetName(); word == "and" || word == "or" || word == "not" {
		return predicate{}, fmt.Errorf("%s in lower case is not an operator: write %s, or %q in quotes to search for "+
			"the word", word, strings.ToUpper(word), word)
	}
	word, ok := spelling(e)
	if !ok {
		return predicate{}, errors.New("contains an expression that is neither a comparison nor a word")
	}
	return c.search(newWord(word)), nil
}

// dotted returns the parts of an expression that is a dotted name, such as status.code. The result
// is false for other expressions.
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

// spelling returns an expression that is a name or a constant as it is written in the filter. The
// result is false for other expressions.
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
