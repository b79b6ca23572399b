package main_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// TestTrainerLogs checks that a job has a log with the lines of all its attempts, also of one whose
// server and worker were killed, at a signed URL that needs no key, and that the log is deleted with
// the job.
func TestTrainerLogs(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), "--listen", freePort(t))
	user := s.user()
	user.dataset("rows", 20)
	const path = "/supervisedFineTuningJobs/logged"
	user.must(http.MethodPost, "/supervisedFineTuningJobs?supervisedFineTuningJobId=logged", jobOn("rows", 120))
	read := func(url string) (int, string) {
		res, err := http.Get(url) //nolint:noctx // a test
		require.NoError(t, err)
		defer res.Body.Close()
		data := testutil.ReadAll(t, res.Body)
		return res.StatusCode, string(data)
	}
	require.Eventually(t, func() bool {
		url, _ := user.get(path)["trainerLogsSignedUrl"].(string)
		if url == "" {
			return false
		}
		_, log := read(url)
		return strings.Contains(log, "step 1 of ")
	}, time.Minute, 50*time.Millisecond)
	s.kill()
	s.start()
	user = s.user()
	user.until(path, "state", "JOB_STATE_COMPLETED")
	url, _ := user.get(path + ":getTrainerLogsEndpoint")["signedUrl"].(string)
	var log string
	require.Eventually(t, func() bool { // the end of the log does not delay the results
		var status int
		status, log = read(url)
		return status == http.StatusOK && strings.Contains(log, "the training is complete")
	}, time.Minute, 50*time.Millisecond)
	require.Contains(t, log, "attempt 1 started, ")
	require.Contains(t, log, "attempt 2 started, ")
	require.Contains(t, log, "train/loss")
	require.NotContains(t, log, s.dir)

	user.must(http.MethodDelete, path, nil)
	require.Eventually(t, func() bool { status, _ := read(url); return status == http.StatusNotFound }, 2*time.Minute,
		100*time.Millisecond)
}
