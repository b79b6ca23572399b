package cli

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestIncompleteResponses checks that a response that does not come from an anneal server, or is
// truncated, is reported in one line.
func TestIncompleteResponses(t *testing.T) {
	writes := func(status int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		}
	}
	cut := func(w http.ResponseWriter, r *http.Request) {
		writes(http.StatusOK, `{"models": [`)(w, r)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		args    []string
		says    string
	}{
		"a page": {writes(200, "<html>"), []string{"model", "list"},
			`^http://127.0.0.1:\d+ did not respond with JSON, so it is no anneal server: select another server ` +
				`with --context$`},
		"a page that is not": {writes(404, "<html>"), []string{"model", "list"},
			`^127.0.0.1:\d+ responded with 404 Not Found, so it is no anneal server: select another server ` +
				`with --context$`},
		"a list that is cut": {cut, []string{"model", "list"}, `^the response was truncated: unexpected EOF; try again$`},
		"a stream that is cut": {cut, []string{"complete", "-m", "a/b", "x"},
			`^the response was truncated: unexpected EOF; try again$`},
		"a stream without end": {writes(200, "data: {}\n\n"), []string{"complete", "-m", "a/b", "x"},
			`^the response was truncated: .*; try again$`},
		"an error in a stream": {writes(200, "data: {\"error\": {\"message\": \"it broke\"}}\n\n"),
			[]string{"chat", "-m", "a/b", "x"}, `^it broke$`},
		"a transcript not done": {writes(200, "data: {}\n\n"), []string{"transcribe", "-m", "a/b", "http://x/y.wav"},
			`^the response was truncated: .*; try again$`},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := runOutput(t, test.handler, test.args...)
			require.Error(t, err)
			require.Regexp(t, test.says, err.Error())
		})
	}
	out, _, err := runOutput(t, writes(200, `data: {"delta": "go for"}`+"\n\n"), "transcribe", "-m", "a/b",
		"http://x/y.wav")
	require.Error(t, err)
	require.Equal(t, "go for\n", out, "the error is printed on a separate line")
	out, _, err = runOutput(t, writes(200, "data: {\"choices\": [{\"text\": \"yes\"}]}\n\ndata: [DONE]\n\n"), "complete",
		"-m", "a/b", "x")
	require.NoError(t, err)
	require.Equal(t, "yes\n", out)
}

// TestTheLengthOfAFileIsSentFirst checks that the server can reject a file that is too large before
// the file is sent.
func TestTheLengthOfAFileIsSentFirst(t *testing.T) {
	sound := filepath.Join(t.TempDir(), "sound.wav")
	require.NoError(t, os.WriteFile(sound, bytes.Repeat([]byte("s"), 1<<20), 0o600))
	for _, args := range [][]string{{"transcribe", "-m", "a/b", sound}, {"dataset", "upload", "d", sound}} {
		announced := int64(0)
		_, _, err := runOutput(t, func(w http.ResponseWriter, r *http.Request) {
			announced = r.ContentLength
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			_, _ = io.WriteString(w, `{"message": "it is larger than 1000 bytes: cut it"}`)
		}, args...)
		require.EqualError(t, err, "it is larger than 1000 bytes: cut it")
		require.Greater(t, announced, int64(1<<20))
		require.Less(t, announced, int64(1<<20+1000))
	}
}
