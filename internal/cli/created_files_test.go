package cli

import (
	"go/ast"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// temporary are the source files of this package that create files only in temporary directories;
// publish then moves these files to their final names.
var temporary = []string{"eval_rows.go", "evaluator_code.go", "model_export.go", "transfer.go"}

// TestCommandsOverwriteNoFiles checks that commands create the files of users with the functions of
// user_files.go, which say what to do about a file that exists.
func TestCommandsOverwriteNoFiles(t *testing.T) {
	found := map[string]bool{}
	testutil.InspectFiles(t, func(path string, selected *ast.SelectorExpr) {
		if from, ok := selected.X.(*ast.Ident); ok && from.Name == "os" &&
			slices.Contains([]string{"Create", "OpenFile", "WriteFile"}, selected.Sel.Name) {
			found[path] = true
		}
	}, "*.go")
	require.True(t, found["user_files.go"])
	delete(found, "user_files.go")
	for _, path := range temporary {
		require.True(t, found[path], "%s creates no files any more", path)
		delete(found, path)
	}
	require.Empty(t, found, "use createNew, storeSecret or publish")
}
