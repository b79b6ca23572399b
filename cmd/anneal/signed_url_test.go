package main_test

import (
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// TestSignedURLsAreNotStoredInClear checks that the metrics file of a job is PUT to the whole
// metricsFileSignedUrl after the server was killed and restarted, although no response, log line or
// file of the server contains the query string of the URL.
func TestSignedURLsAreNotStoredInClear(t *testing.T) {
	t.Parallel()
	const canary = "canary-19fe02"
	received := make(chan string, 9)
	store := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		content, _ := io.ReadAll(r.Body)
		received <- r.Method + " " + r.URL.RawQuery + " " + string(content)
	}))
	t.Cleanup(store.Close)
	s := serve(t, t.TempDir(), "--listen", freePort(t), "--fetch-private")
	user := s.user()
	user.dataset("rows", 20)
	job := jobOn("rows", 1)
	job["metricsFileSignedUrl"] = store.URL + "/metrics.jsonl?sig=" + canary
	const path = "/supervisedFineTuningJobs/signed"
	created := user.must(http.MethodPost, "/supervisedFineTuningJobs?supervisedFineTuningJobId=signed", job)
	require.Equal(t, store.URL+"/metrics.jsonl", created["metricsFileSignedUrl"])
	s.kill()
	s.start()

	user = s.user()
	user.until(path, "state", "JOB_STATE_COMPLETED")
	sent := <-received
	require.True(t, strings.HasPrefix(sent, "PUT sig="+canary+" {"), "%s", sent)
	require.Contains(t, sent, "train/loss")
	for _, one := range []string{path, "/supervisedFineTuningJobs", path + "/events", "/events"} {
		res, err := user.send(http.MethodGet, one, nil)
		require.NoError(t, err)
		data := testutil.ReadAll(t, res.Body)
		require.NoError(t, res.Body.Close())
		require.NotContains(t, string(data), canary, one)
		require.Contains(t, string(data), "/metrics.jsonl", one)
	}
	require.Zero(t, s.end())
	require.NotContains(t, s.log.output(), canary)
	require.NoError(t, filepath.WalkDir(s.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		require.NotContains(t, string(data), canary, path)
		return err
	}))
}
