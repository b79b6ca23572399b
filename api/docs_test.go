package api

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page loads its own files and nothing from elsewhere.
func TestThePageOfDocumentation(t *testing.T) {
	s := newStage(t, Limits{})
	page := s.call("GET", "/docs", "", "")
	require.Equal(t, 200, page.status)
	require.Contains(t, page.header.Get("Content-Type"), "text/html")
	require.Contains(t, page.header.Get("Content-Security-Policy"), "default-src 'none'")
	loaded := regexp.MustCompile(`(?:href|src)="([^"#]+)"`).FindAllStringSubmatch(string(page.body), -1)
	require.NotEmpty(t, loaded)
	for _, one := range loaded {
		require.NotContains(t, one[1], ":", "from elsewhere")
		require.Equal(t, 200, s.call("GET", "/"+one[1], "", "").status, one[1])
	}
	require.Equal(t, page.body, s.call("GET", "/", "", "").body, "the root leads there")
	script := string(s.call("GET", "/docs/docs.js", "", "").body)
	require.NotContains(t, script, "innerHTML", "a description must not become markup")
	require.False(t, strings.Contains(script, "http://") || strings.Contains(script, "https://"))
	require.Equal(t, 404, s.call("GET", "/docs/none.js", "", "").status)
}
