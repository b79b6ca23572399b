package cli

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// temporary are the source files of this package that create files only in temporary directories;
// publish then moves these files to their final names.
var temporary = []string{"eval_rows.go", "evaluator_code.go", "model_export.go", "transfer.go"}

// TestCommandsOverwriteNoFiles checks that commands create the files of users with the functions of
// user_files.go, which say what to do about a file that exists.
func TestCommandsOverwriteNoFiles(t *testing.T) {
	paths, err := filepath.Glob("*.go")
	require.NoError(t, err)
	found := map[string]bool{}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if from, ok := call.X.(*ast.Ident); ok && from.Name == "os" &&
				slices.Contains([]string{"Create", "OpenFile", "WriteFile"}, call.Sel.Name) {
				found[path] = true
			}
			return true
		})
	}
	require.True(t, found["user_files.go"])
	delete(found, "user_files.go")
	for _, path := range temporary {
		require.True(t, found[path], "%s creates no files any more", path)
		delete(found, path)
	}
	require.Empty(t, found, "use createNew, storeSecret or publish")
}
