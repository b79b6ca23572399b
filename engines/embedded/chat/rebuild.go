package chat

import (
	"reflect"
	"strings"
	"unsafe"

	structures "github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/tokens"

	"anneal/domain"
)

// rebuild puts the bounds into a program: a tick into each body, and filters
// around each expression that makes a value.
type rebuild struct {
	now  *rendering
	seen map[uintptr]bool
}

func (b rebuild) filtered(e nodes.Expression, filter string, args ...nodes.Expression) *nodes.FilteredExpression {
	at := &tokens.Token{Type: tokens.Name, Val: filter}
	return &nodes.FilteredExpression{Expression: e, Filters: []*nodes.FilterCall{{Token: at, Name: filter, Args: args, Kwargs: map[string]nodes.Expression{}}}}
}

// expression is what stands for e.
func (b rebuild) expression(e nodes.Expression) nodes.Expression {
	switch e := e.(type) {
	case *nodes.BinaryExpression:
		if e.Operator.Token.Type == tokens.Multiply {
			return b.filtered(e.Left, "times", e.Right)
		}
		return b.filtered(e, "bounded")
	case *nodes.Call, *nodes.FilteredExpression, *nodes.List, *nodes.Tuple, *nodes.Dict:
		return b.filtered(e, "bounded")
	case *nodes.GetItem: // the library finds no [-1] in a list of one
		if arg, ok := e.Arg.(*nodes.UnaryExpression); ok && arg.Negative {
			return b.filtered(e.Node.(nodes.Expression), "fromEnd", arg.Term)
		}
	}
	return e
}

// all puts the bounds into what v holds, down to the last expression. The
// library has no way to be asked for the parts of its statements, and some are
// in fields of its own: those are reached by their address.
func (b rebuild) all(v reflect.Value) {
	switch v.Kind() {
	case reflect.Interface:
		if v.IsNil() {
			return
		}
		b.all(v.Elem())
		if e, ok := v.Interface().(nodes.Expression); ok && v.CanSet() {
			v.Set(reflect.ValueOf(b.expression(e)))
		}
	case reflect.Pointer:
		if v.IsNil() || !b.ours(v.Type().Elem()) || b.seen[v.Pointer()] {
			return
		}
		b.seen[v.Pointer()] = true
		b.all(v.Elem())
		b.finish(v.Interface())
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Field(i)
			b.all(reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			b.all(v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			one := reflect.New(v.Type().Elem()).Elem()
			one.Set(v.MapIndex(key))
			b.all(one)
			v.SetMapIndex(key, one)
		}
	}
}

// ours tells whether a type is a part of a program.
func (b rebuild) ours(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[definition](), reflect.TypeFor[assignment]():
		return true
	}
	return strings.HasSuffix(t.PkgPath(), "/nodes") || strings.HasSuffix(t.PkgPath(), "/control_structures")
}

// finish bounds what is no expression itself.
func (b rebuild) finish(node any) {
	switch node := node.(type) {
	case *nodes.Output:
		node.Expression = b.filtered(node.Expression, "shown")
		if node.Alternative != nil {
			node.Alternative = b.filtered(node.Alternative, "shown")
		}
	case *nodes.Wrapper:
		tick := &nodes.ControlStructureBlock{Location: node.Location, Name: "tick", ControlStructure: beginning{node.Location, b.now}}
		node.Nodes = append([]nodes.Node{tick}, node.Nodes...)
	case *structures.ForControlStructure:
		node.ObjectEvaluator = b.filtered(node.ObjectEvaluator, "walked")
	}
}

// Bounds of a template's text. Its parser calls itself for each bracket and
// block, and its errors quote expressions in one another.
const (
	maxSource  = 256 << 10 // bytes
	maxNesting = 100       // brackets and blocks
	maxTokens  = 4000      // of one tag
)

// checkSource refuses what would be too much for the parser.
func checkSource(source string, settings *config.Config) error {
	if len(source) > maxSource {
		return domain.Errorf(domain.FailedPrecondition, "the model's chat template has more than %d bytes", maxSource)
	}
	brackets, blocks, length := 0, 0, 0
	for stream := tokens.LexAll(source, settings); !stream.End(); {
		token := stream.Next()
		length++
		switch token.Type {
		case tokens.LeftParenthesis, tokens.LeftBracket, tokens.LeftBrace:
			brackets++
		case tokens.RightParenthesis, tokens.RightBracket, tokens.RightBrace:
			brackets--
		case tokens.VariableBegin, tokens.BlockBegin:
			brackets, length = 0, 0
			if next := stream.Current(); token.Type == tokens.BlockBegin && next != nil && next.Type == tokens.Name {
				blocks += nesting(next.Val)
			}
		}
		if max(brackets, blocks) > maxNesting || length > maxTokens {
			return domain.Errorf(domain.FailedPrecondition, "the model's chat template nests more than %d brackets or blocks, or has a tag of more than %d words", maxNesting, maxTokens)
		}
	}
	return nil
}

// nesting is 1 for a statement that others can stand in, -1 for its end.
func nesting(statement string) int {
	switch {
	case strings.HasPrefix(statement, "end"):
		return -1
	case statement == "if", statement == "for", statement == "macro", statement == "with":
		return 1
	}
	return 0 // among them set, which counts only by what ends it, and mostly has no end
}
