package testutil

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"

	"github.com/stretchr/testify/require"
)

// Inspect calls visit with each node of type N in the syntax tree of root, in the order of
// ast.Inspect.
func Inspect[N ast.Node](root ast.Node, visit func(N)) {
	ast.Inspect(root, func(n ast.Node) bool {
		if found, ok := n.(N); ok {
			visit(found)
		}
		return true
	})
}

// InspectFiles calls visit with each node of type N in the syntax trees of the Go files that match
// the patterns, except test files.
func InspectFiles[N ast.Node](t TB, visit func(path string, node N), patterns ...string) {
	t.Helper()
	for _, pattern := range patterns {
		for _, path := range Glob(t, pattern) {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			require.NoError(t, err)
			Inspect(file, func(n N) { visit(path, n) })
		}
	}
}
