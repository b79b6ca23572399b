package anneal_test

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/wire"
	"anneal/eventlog/secrets"
)

// secretReads names the code that reads secrets, by its purpose. The types of secrets.OpenFunc and
// of secrets.ObservedVault make each read have a secrets.Reader, and so an audit record.
var secretReads = map[string]string{
	"SCORE_RESPONSES":    "workers/coordinator/file_sets.go",
	"BUILD_EVALUATOR":    "workers/tasks/evaluator.go",
	"PREVIEW_EVALUATOR":  "api/rest/preview_evaluator.go",
	"TRACK_JOB":          "workers/tracking/turn.go",
	"COPY_TRACKER_KEY":   "api/rest/compatible_request.go",
	"UPLOAD_METRICS":     "workers/tasks/metrics_upload.go",
	"TRANSFER_DATASET":   "workers/tasks/dataset_transfer.go",
	"CHECK_CREDENTIALS":  "api/rest/dataset_transfers.go",
	"SIGN_WEBHOOK":       "workers/subscriptions/send.go",
	"WRITE_SUBSCRIPTION": "workers/subscriptions/files.go",
}

// TestSecretReadsAreObserved checks that secretReads has all code that reads secrets, and that no
// code of the program reads a vault without reporting it.
func TestSecretReadsAreObserved(t *testing.T) {
	values := map[string]string{} // by name of the constant
	for _, purpose := range secrets.Purposes {
		words := strings.Split(strings.ToLower(string(purpose)), "_")
		for i, word := range words {
			words[i] = wire.Capitalize(word)
		}
		values[strings.Join(words, "")] = string(purpose)
	}
	found := map[string]string{}
	eachFile(t, func(path string, file *ast.File, set *token.FileSet) {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "eventlog/secrets/") ||
			strings.HasPrefix(path, "blobs/reconcile/faults/") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			selected, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if from, ok := selected.X.(*ast.Ident); ok && (from.Name == "secrets" || from.Name == "sealed") {
				if purpose := values[selected.Sel.Name]; purpose != "" {
					require.Empty(t, found[purpose], "%s: each purpose has one place", set.Position(n.Pos()))
					found[purpose] = path
				}
			}
			if selected.Sel.Name == "Open" {
				last := ""
				switch of := selected.X.(type) {
				case *ast.Ident:
					last = of.Name
				case *ast.SelectorExpr:
					last = of.Sel.Name
				}
				require.NotContains(t, []string{"vault", "Vault", "sealer"}, last,
					"%s: use secrets.ObservedVault, so that the read is recorded", set.Position(n.Pos()))
			}
			return true
		})
	})
	require.Equal(t, secretReads, found)
	require.Len(t, secretReads, len(secrets.Purposes))
}
