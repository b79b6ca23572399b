package anneal_test

import (
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

	"anneal/internal/testutil"
)

// faultTests maps each function that changes a file or a data key, outside of the packages that
// implement the stores, to the test that injects faults at the change: a directory and a test.
var faultTests = map[string]string{
	"api/rest.seal":                     "api TestFaultsAtEveryEffect",
	"api/upload.File":                   "api TestFaultsAtEveryEffect",
	"api/upload.Take":                   "api TestFaultsAtEveryEffect",
	"api/upload.Discard":                "api TestFaultsAtEveryEffect",
	"workers/tasks.discard":             "workers/tasks TestFaultsAtEveryEffect",
	"workers/tasks.store":               "workers/tasks TestFaultsAtEveryEffect",
	"workers/tasks.make":                "workers/tasks TestFaultsAtEveryEffect",
	"workers/tasks.recordResult":        "workers/tasks TestFaultsAtEveryEffect",
	"workers/tasks.write":               "workers/tasks TestFaultsAtEveryEffect",
	"workers/tasks.convert":             "workers/tasks TestFaultsAtEveryEffect",
	"workers/tasks.put":                 "workers/tasks TestFaultsAtEveryEffect",
	"workers/batches.store":             "workers/batches TestFaultsAtEveryEffect",
	"workers/batches.write":             "workers/batches TestFaultsAtEveryEffect",
	"workers/coordinator.store":         "workers/coordinator TestFaultsAtEveryEffect",
	"workers/tracking.save":             "workers/tracking TestFaultsAtEveryEffect",
	"internal/server.ensureBaseModel":   "internal/server TestFaultsAtEveryEffect",
	"internal/server.ensureSpeechModel": "internal/server TestFaultsAtEveryEffect",
	"blobs/reconcile.sweepBlobs":        "blobs/reconcile TestFaultsAtEveryEffect",
	"blobs/reconcile.sweepKeys":         "blobs/reconcile TestFaultsAtEveryEffect",
	"blobs/reconcile.deleteDropped":     "blobs/reconcile TestFaultsAtEveryEffect",
	"blobs/reconcile.deleteBlob":        "blobs/reconcile TestFaultsAtEveryEffect",
	"blobs/operations.Create":           "blobs/operations TestFaultsAtEveryEffect",
	"blobs/operations.Submit":           "blobs/operations TestFaultsAtEveryEffect",
	"blobs/operations.Finish":           "blobs/operations TestFaultsAtEveryEffect",
	"blobs/operations.Trim":             "blobs/operations TestFaultsAtEveryEffect",
	"blobs/operations.Sweep":            "blobs/operations TestFaultsAtEveryEffect",
	"blobs/operations.Discard":          "blobs/operations TestFaultsAtEveryEffect",
	"blobs/operations.End":              "blobs/operations TestFaultsAtEveryEffect",

	// Files of one request, which no event refers to: the reconciler deletes them.
	"api/audio.fetch":            "blobs/reconcile TestReconcile",
	"api/inference.storeImages":  "blobs/reconcile TestReconcile",
	"api/inference.storeImage":   "blobs/reconcile TestReconcile",
	"workers/coordinator.remove": "blobs/reconcile TestReconcile",
}

// stores are the packages that implement the stores of files and data keys. Their own tests cut
// files and power at every step.
var stores = []string{"blobs", "eventlog"}

// changesStore reports whether a call changes a file or a data key. name is the name of the method.
func changesStore(call *ast.CallExpr) (name string, yes bool) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"Put", "Create", "Copy", "Delete", "DeleteAll",
		"DeletePrefix", "Seal", "Shred"}, method.Sel.Name) {
		return "", false
	}
	// The stores are fields, such as s.blobs; others with such methods are packages and variables.
	field, ok := method.X.(*ast.SelectorExpr)
	if !ok {
		return "", false
	}
	return method.Sel.Name, slices.Contains([]string{"blobs", "Blobs", "Sealer", "vault", "Keys"}, field.Sel.Name)
}

// TestEveryEffectHasAFaultTest checks that faultTests has every function that changes a file or a
// data key, and that its tests exist.
func TestEveryEffectHasAFaultTest(t *testing.T) {
	found := map[string]bool{}
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		if slices.Contains(stores, dir) || strings.HasPrefix(dir, "eventlog/") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		for _, declared := range file.Decls {
			f, ok := declared.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if name, yes := changesStore(call); yes {
						at := dir + "." + f.Name.Name
						found[at] = true
						if faultTests[at] == "" {
							t.Errorf("%s calls %s: write a test that injects faults there, and add it to faultTests", at, name)
						}
					}
				}
				return true
			})
		}
		return nil
	}))
	for at, test := range faultTests {
		require.True(t, found[at], "%s changes no store: remove it from faultTests", at)
		dir, name, _ := strings.Cut(test, " ")
		require.True(t, declares(t, dir, name), "%s has no test %s", dir, name)
	}
}

// declares reports whether a test file of a directory declares a test.
func declares(t *testing.T, dir, name string) bool {
	paths := testutil.Glob(t, filepath.Join(dir, "*_test.go"))
	return slices.ContainsFunc(paths, func(path string) bool {
		content := testutil.ReadFile(t, path)
		return regexp.MustCompile(`(?m)^func ` + name + `\(`).Match(content)
	})
}
