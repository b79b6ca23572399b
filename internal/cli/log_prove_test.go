package cli

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/datadir"
)

// roundTrip is a transport whose RoundTrip is a function.
type roundTrip func(*http.Request) string

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Request: r, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader(f(r)))}, nil
}

// TestProveWhileTheLogGrows proves the events of an account from a log that grows between the
// requests. The file proves that the newest checkpoint continues an earlier one, and all between.
func TestProveWhileTheLogGrows(t *testing.T) {
	since, _, key := textLog{text: "a", n: 10}.files(t, 1, 0)
	log, sinces := textLog{text: "a", n: 10}, []string{}
	transport := roundTrip(func(r *http.Request) string {
		name, found := strings.CutSuffix(filepath.Base(r.URL.Path), ":prove")
		if !found {
			return `{"events":[{"position":"1"},{"position":"2"},{"position":"3"},{"position":"4"}]}`
		}
		position, err := strconv.ParseUint(name, 10, 63)
		require.NoError(t, err)
		sinces = append(sinces, r.URL.Query().Get("since"))
		size, err := strconv.ParseUint(sinces[len(sinces)-1], 10, 63)
		require.NoError(t, err)
		if position != 3 {
			log.n += position
		}
		lines, _ := log.prove(t, t.TempDir(), size, position)
		return string(lines[0])
	})
	p := prover{all: true, since: since, client: &client{http: &http.Client{Transport: transport},
		Context: datadir.Context{Address: "http://localhost", APIKey: "k", Account: "acme"}}}
	size, err := sizeOf(since)
	require.NoError(t, err)
	data, err := p.bundles(t.Context(), size)
	require.NoError(t, err)
	require.Equal(t, []string{"10", "11", "13", "13"}, sinces)
	require.Equal(t, 3, bytes.Count(data, []byte(`"growth"`)), "none for the same checkpoint")
	path := filepath.Join(t.TempDir(), "account.proof")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	report, err := (&logCheck{key: key, since: since}).run(path)
	require.NoError(t, err)
	require.Len(t, report.Events, 4)
	require.EqualValues(t, 17, report.Checkpoint.Size)
	require.EqualValues(t, 10, report.Since.Size)
	require.Empty(t, report.Unlinked)

	var sizes []string
	for _, line := range bytes.Split(bytes.TrimSpace(data), []byte("\n")) {
		require.NoError(t, os.WriteFile(path, line, 0o600))
		report, err := (&logCheck{key: key}).run(path)
		require.NoError(t, err)
		if report.Since != nil {
			sizes = append(sizes, fmt.Sprint(report.Since.Size, "-", report.Checkpoint.Size))
		}
	}
	require.Equal(t, []string{"10-11", "11-13", "13-17"}, sizes)
}

// TestProveShortNameWithoutAccount checks that a short name of a resource, on the server's machine and
// without a context, is rejected with what to do.
func TestProveShortNameWithoutAccount(t *testing.T) {
	p := prover{client: &client{}, subject: "deployments/codes"}
	_, err := p.creation(t.Context())
	require.ErrorContains(t, err, `"deployments/codes" needs an account: give the full name, `+
		`accounts/ACCOUNT/deployments/codes, or log in with 'anneal login'`)
}
