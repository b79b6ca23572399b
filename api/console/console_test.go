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

// TestFiles checks the size of the console, that each file that another one names exists, that no file
// names another server, and that each library has its license.
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
