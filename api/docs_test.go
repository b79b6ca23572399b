package api

import (
	"html"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/domain/rows"
)

// TestDocumentationPage checks that the documentation page loads only its own files.
func TestDocumentationPage(t *testing.T) {
	s := newHarness(t, request.Limits{})
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
	require.Contains(t, string(s.call("GET", "/", "", "").body), "/console/main.js", "the root is the console")
	script := string(s.call("GET", "/docs/docs.js", "", "").body)
	require.NotContains(t, script, "innerHTML", "a description must not become markup")
	require.False(t, strings.Contains(script, "http://") || strings.Contains(script, "https://"))
	require.Equal(t, 404, s.call("GET", "/docs/none.js", "", "").status)
}

// TestDocumentedRowsAreValid checks that every shape of rows that jobs train on has examples, and
// that each example has its shape.
func TestDocumentedRowsAreValid(t *testing.T) {
	s := newHarness(t, request.Limits{})
	page := string(s.call("GET", "/docs/rows.html", "", "").body)
	shown := map[string]bool{}
	for _, example := range regexp.MustCompile(`<pre data-shape="(\w+)">([^<]*)</pre>`).FindAllStringSubmatch(page, -1) {
		row, faults := rows.Parse([]byte(html.UnescapeString(example[2])), "")
		require.Empty(t, faults, example[2])
		require.Equal(t, example[1], row.Shape, example[2])
		require.Contains(t, page, "<h2>"+row.Shape+" (format "+domain.FormatOf(row.Shape)+")</h2>")
		shown[row.Shape] = true
	}
	for kind := range domain.JobKinds() {
		for _, shape := range domain.JobShapes(kind.CollectionID()) {
			require.True(t, shown[shape], "%s rows, on which %s train", shape, kind.CollectionID())
		}
	}
}
