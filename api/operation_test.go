package api

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOperationNames checks that operation IDs can be names of methods in generated clients, and
// that summaries can be headings of the documentation.
func TestOperationNames(t *testing.T) {
	ids, routes := map[string]bool{}, map[string]bool{}
	for _, op := range (&Server{}).operations() {
		route := op.Method + " " + op.Path
		require.False(t, routes[route], "%s is not unique", route)
		require.False(t, ids[op.ID], "%s is not unique", op.ID)
		ids[op.ID], routes[route] = true, true
		require.NotNil(t, op.Handle, op.ID)
		if op.Hidden {
			continue
		}
		require.Regexp(t, regexp.MustCompile(`^[a-z][A-Za-z]+$`), op.ID)
		require.NotEmpty(t, op.Tag, op.ID)
		require.NotEmpty(t, op.Summary, op.ID)
		require.False(t, strings.HasSuffix(op.Summary, "."), op.ID)
		require.True(t, op.Response != nil || op.Media != "", "%s has no response", op.ID)
		require.False(t, op.Body != nil && op.Form != nil, op.ID)
		for _, p := range append(op.Query, append(op.Headers, op.ResponseHeaders...)...) {
			require.NotEmpty(t, p.Description, "%s: %s", op.ID, p.Name)
		}
	}
}
