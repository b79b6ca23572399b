package console

import (
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// maxTotal is the goal for the size of all files, compressed.
const maxTotal = 80 << 10

// TestFiles checks the size of the console, that each file that another one names exists, that no
// file names another server, and that each library has its license.
func TestFiles(t *testing.T) {
	total := 0
	licenses := string(files["vendor/LICENSES.txt"].content)
	require.NotEmpty(t, licenses)
	named := regexp.MustCompile(`/console/([\w./-]+)`)
	for name, f := range files {
		if name != "vendor/LICENSES.txt" {
			total += len(f.gzipped)
		}
		for _, match := range named.FindAllSubmatch(f.content, -1) {
			require.Contains(t, files, string(match[1]), name)
		}
		if base, ok := strings.CutPrefix(name, "vendor/"); ok {
			require.True(t, base == "LICENSES.txt" || strings.Contains(licenses, base), name)
			continue
		}
		own := strings.ReplaceAll(string(f.content), "http://www.w3.org/2000/svg", "") // a namespace
		require.NotRegexp(t, `https?://[^$\s]*\.\w`, own, "%s names another server", name)
	}
	require.Less(t, total, maxTotal)
	require.NoError(t, fs.WalkDir(static, "static", func(at string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !strings.HasPrefix(at, "static/vendor/") {
			content, err := fs.ReadFile(static, at)
			require.NoError(t, err)
			// a quote after // may mean that // is part of a text, which compact would cut off
			require.NotRegexp(t, "(?m) // .*['\"`]", string(content), at)
		}
		return err
	}))
	t.Logf("%d files, %d bytes compressed", len(files), total)
}

var (
	// declaration matches a declaration at the top level of a module.
	declaration = regexp.MustCompile(`(?m)^(?:export )?(?:async )?` +
		`(?:const|let|var|function\*?|class) (\S.*?)\b(?:[^\w$]|$)`)
	identifier = regexp.MustCompile(`^[A-Za-z_$][\w$]*$`)
)

// TestModules checks that the modules can be joined: all are used, each imports names that another one exports, names
// at the top level differ and hide no property of the page that a module uses, and no module imports itself through
// others.
func TestModules(t *testing.T) {
	declared := map[string]string{} // module by name, for the modules of the console
	sources := map[string]string{}
	require.NoError(t, fs.WalkDir(static, "static", func(at string, entry fs.DirEntry, err error) error {
		name := strings.TrimPrefix(at, "static/")
		if err != nil || !strings.HasSuffix(name, ".js") || strings.HasPrefix(name, "vendor/") {
			return err
		}
		content, err := fs.ReadFile(static, at)
		require.NoError(t, err)
		sources[name] = string(content)
		if name == "oidc.js" {
			return nil
		}
		for _, match := range declaration.FindAllSubmatch(content, -1) {
			declares := string(match[1])
			require.Regexp(t, identifier, declares, "%s declares several names at once", name)
			require.NotContains(t, declared, declares, "%s and %s declare a name", name, declared[declares])
			require.NotContains(t, []string{"window", "document", "location", "history", "fetch", "name", "crypto"},
				declares, "%s hides a property of the page", name)
			declared[declares] = name
		}
		return nil
	}))
	var visit func(name string, path []string)
	visited := map[string]bool{}
	visit = func(name string, path []string) {
		require.NotContains(t, path, name, "a cycle of imports")
		visited[name] = true
		require.Equal(t, strings.Count(sources[name], "\nimport ")+strings.Count(sources[name][:7], "import "),
			len(imports.FindAllString(sources[name], -1)), "an import of %s has another form", name)
		for _, match := range imports.FindAllStringSubmatch(sources[name], -1) {
			if from := match[2]; !strings.HasPrefix(from, "vendor/") {
				for names := range strings.SplitSeq(match[1], ", ") {
					require.Regexp(t, `(?m)^export .*\b`+names+`\b`, sources[from], "%s imports %s of %s", name, names, from)
					require.Equal(t, from, declared[names])
				}
				visit(from, append(path, name))
			}
		}
	}
	for _, entry := range entries {
		visit(entry, nil)
		require.NotRegexp(t, `(?m)^import .*/console/[^v]`, string(files[entry].content))
	}
	require.Len(t, visited, len(sources), "a module is not used")
}

// TestCharts checks that a single component draws charts, since its tables have the numbers of each.
func TestCharts(t *testing.T) {
	content := string(files["main.js"].content)
	require.Equal(t, 1, strings.Count(content, "new uPlot("))
	_, chart, found := strings.Cut(content, "function Chart(")
	require.True(t, found)
	chart, _, _ = strings.Cut(chart, "\n}\n\n")
	require.Contains(t, chart, "new uPlot(")
	require.Contains(t, chart, "<summary>Table</summary>")
}

// TestSend checks the headers of a file, its compression, and the reply to a client that has the file.
func TestSend(t *testing.T) {
	f := files["main.js"]
	send := func(header, value string) *http.Response {
		r := httptest.NewRequest(http.MethodGet, "/console/main.js", nil)
		r.Header.Set(header, value)
		w := httptest.NewRecorder()
		f.send(w, r)
		return w.Result()
	}
	plain := send("Accept", "*/*")
	body, err := io.ReadAll(plain.Body)
	require.NoError(t, err)
	require.Equal(t, f.content, body)
	require.Equal(t, "text/javascript; charset=utf-8", plain.Header.Get("Content-Type"))
	require.Contains(t, plain.Header.Get("Content-Security-Policy"), "default-src 'self'")
	small := send("Accept-Encoding", "br, gzip")
	require.Equal(t, "gzip", small.Header.Get("Content-Encoding"))
	reader, err := gzip.NewReader(small.Body)
	require.NoError(t, err)
	body, err = io.ReadAll(reader)
	require.NoError(t, err)
	require.True(t, bytes.Equal(f.content, body))
	require.Equal(t, http.StatusNotModified, send("If-None-Match", plain.Header.Get("ETag")).StatusCode)
}
