package anneal_test

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReactionsCarryTheirRequest checks that code which reacts to an event makes its request with
// eventlog.Reaction: a request with a cause alone would lose the correlation and the trace of the
// request at the root of the chain. Only requests of clients set a correlation themselves.
func TestReactionsCarryTheirRequest(t *testing.T) {
	reactions := 0
	eachFile(t, func(path string, file *ast.File, set *token.FileSet) {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "eventlog/") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if n.Sel.Name == "Reaction" && isPackage(n.X, "eventlog") {
					reactions++
				}
			case *ast.CompositeLit:
				of, ok := n.Type.(*ast.SelectorExpr)
				if !ok || of.Sel.Name != "Request" || !isPackage(of.X, "eventlog") {
					return true
				}
				for _, element := range n.Elts {
					pair, ok := element.(*ast.KeyValueExpr)
					require.True(t, ok, "%s: name the fields", set.Position(n.Pos()))
					field := pair.Key.(*ast.Ident).Name
					if field == "Cause" || field == "Correlation" && path != "api/request/call.go" {
						t.Errorf("%s: sets %s: use eventlog.Reaction", set.Position(n.Pos()), field)
					}
				}
			}
			return true
		})
	})
	require.GreaterOrEqual(t, reactions, 6)
}
