package api

import (
	"html"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/domain/rows"
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

// Every shape of rows is shown by examples, and each is what it is said to be.
func TestTheDocumentedRowsAreRows(t *testing.T) {
	s := newStage(t, Limits{})
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
