package anneal_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// listsNames matches the text of a message that lists the known names or values.
var listsNames = regexp.MustCompile(
	`(must be one of|it is one of|valid (fields|parameters|values):|fields are|choose from) %`)

// TestMisspeltNamesGetSuggestions checks that every message that lists known names or values also
// suggests those that are most similar to the given one: the list is long, and the user misspelt
// one.
func TestMisspeltNamesGetSuggestions(t *testing.T) {
	found := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok || !slices.ContainsFunc(call.Args, isNameList) {
				return true
			}
			found++
			require.True(t, slices.ContainsFunc(call.Args, suggests), "%s: suggest the most similar name with "+
				"domain.OneOfRule, UnknownName or DidYouMean", files.Position(call.Pos()))
			return true
		})
		return nil
	}))
	require.Greater(t, found, 3)
}

func isNameList(argument ast.Expr) bool {
	if sum, ok := argument.(*ast.BinaryExpr); ok {
		return isNameList(sum.X) || isNameList(sum.Y)
	}
	text, ok := argument.(*ast.BasicLit)
	return ok && listsNames.MatchString(text.Value)
}

// suggests reports whether an argument calls a function that suggests names.
func suggests(argument ast.Expr) (found bool) {
	ast.Inspect(argument, func(node ast.Node) bool {
		if call, ok := node.(*ast.CallExpr); ok {
			name := fmt.Sprint(call.Fun)
			if selected, ok := call.Fun.(*ast.SelectorExpr); ok {
				name = selected.Sel.Name
			}
			found = found || slices.Contains([]string{"OneOfRule", "UnknownName", "DidYouMean"}, name)
		}
		return true
	})
	return found
}
