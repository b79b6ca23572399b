package anneal_test

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// functionWords are words with which a sentence reads wrongly when they name a parameter: "the
// events after the position after".
var functionWords = strings.Fields(
	"after at before by each for from into of on one other over since to until with within")

// TestParametersAreNouns checks that no function or method of an interface has a parameter or a
// result that is named by a function word, if its doc comment contains this word.
func TestParametersAreNouns(t *testing.T) {
	checked := 0
	eachFile(t, func(path string, file *ast.File, set *token.FileSet) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		check := func(doc *ast.CommentGroup, signature *ast.FuncType) {
			checked++
			for _, name := range functionWordsOf(doc, signature) {
				t.Errorf("%s: the doc comment contains the word %q, which also names a parameter or a result: "+
					"name it by a noun", set.Position(signature.Pos()), name)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				check(n.Doc, n.Type)
			case *ast.InterfaceType:
				for _, method := range n.Methods.List {
					if signature, ok := method.Type.(*ast.FuncType); ok {
						check(method.Doc, signature)
					}
				}
			}
			return true
		})
	})
	if checked < 1000 {
		t.Errorf("only %d functions were checked", checked)
	}
}

// functionWordsOf returns the function words that name a parameter or a result of a function and
// occur in its doc comment.
func functionWordsOf(doc *ast.CommentGroup, signature *ast.FuncType) (found []string) {
	fields := signature.Params.List
	if signature.Results != nil {
		fields = slices.Concat(fields, signature.Results.List)
	}
	for _, field := range fields {
		for _, name := range field.Names {
			if slices.Contains(functionWords, name.Name) &&
				regexp.MustCompile(`\b`+name.Name+`\b`).MatchString(doc.Text()) {
				found = append(found, name.Name)
			}
		}
	}
	return found
}
