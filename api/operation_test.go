package api

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Generated clients make methods of operation IDs, and a page of documentation
// headings of summaries.
func TestOperationsAreWellNamed(t *testing.T) {
	ids, routes := map[string]bool{}, map[string]bool{}
	for _, op := range operations() {
		route := op.method + " " + op.path
		require.False(t, routes[route], "%s is there twice", route)
		require.False(t, ids[op.id], "%s is there twice", op.id)
		ids[op.id], routes[route] = true, true
		require.NotNil(t, op.handle, op.id)
		if op.unlisted {
			continue
		}
		require.Regexp(t, regexp.MustCompile(`^[a-z][A-Za-z]+$`), op.id)
		require.NotEmpty(t, op.tag, op.id)
		require.NotEmpty(t, op.summary, op.id)
		require.False(t, strings.HasSuffix(op.summary, "."), op.id)
		require.True(t, op.answer != nil || op.media != "", "%s answers nothing", op.id)
		require.False(t, op.body != nil && op.form != nil, op.id)
		for _, p := range append(op.query, append(op.headers, op.replies...)...) {
			require.NotEmpty(t, p.about, "%s: %s", op.id, p.name)
		}
	}
}
