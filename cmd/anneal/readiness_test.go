package main_test

import (
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// status returns the status of a response, and its header anneal-stale.
func (c caller) status(method, path string, body any) (status int, stale string) {
	c.t.Helper()
	res, err := c.send(method, path, body)
	require.NoError(c.t, err)
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	require.NoError(c.t, err)
	return res.StatusCode, res.Header.Get("anneal-stale")
}

// TestReadsAndCompletionsContinueWithoutQuorum stops two of three NATS servers: the control plane
// stays ready to read and infer, and is ready to write again when the quorum is back.
func TestReadsAndCompletionsContinueWithoutQuorum(t *testing.T) {
	c := startNATS(t)
	s := c.serve(t.TempDir(), "--lame-duck", "0s")
	s.joined()
	user, anyone := s.user(), s.as("", "")
	user.deploy("d", object{"baseModel": baseModel})
	is := func(path string, want int) func() bool {
		return func() bool {
			status, _ := anyone.status(http.MethodGet, path, nil)
			return status == want
		}
	}
	require.True(t, is("//readyz", 200)())
	require.True(t, is("//readyz/write", 200)())

	c.stop(1)
	c.stop(2)
	var stop atomic.Bool
	var checks sync.WaitGroup
	defer func() { stop.Store(true); checks.Wait() }()
	checks.Go(func() {
		for !stop.Load() && !t.Failed() {
			assert.True(t, is("//readyz", 200)(), "the server stays ready")
			status, answer, err := user.complete("accounts/default/deployments/d", "hello")
			assert.NoError(t, err)
			assert.Equal(t, http.StatusOK, status, "%v", answer)
		}
	})
	eventually(t, "the server is not ready to write", is("//readyz/write", 503))
	eventually(t, "reads are marked as stale", func() bool {
		status, stale := user.status(http.MethodGet, "/deployments/d", nil)
		require.Equal(t, http.StatusOK, status)
		seconds, _ := strconv.Atoi(stale)
		return seconds > 0
	})
	status, _ := user.status(http.MethodPost, "/datasets", object{"datasetId": "late", "dataset": object{}})
	require.GreaterOrEqual(t, status, 500, "nothing can be recorded")

	c.start(1)
	eventually(t, "the server is ready to write", is("//readyz/write", 200))
	eventually(t, "reads are not stale", func() bool {
		_, stale := user.status(http.MethodGet, "/deployments/d", nil)
		return stale == ""
	})
	stop.Store(true)
	checks.Wait()
	user.must(http.MethodPost, "/datasets", object{"datasetId": "after", "dataset": object{}})

	c.start(2)
	c.stop(0) // to which the control plane and its worker are connected
	c.stop(1)
	eventually(t, "requests are answered through another NATS server", func() bool {
		status, _, err := user.complete("accounts/default/deployments/d", "hello")
		require.NoError(t, err)
		return status == http.StatusOK
	})
	status, _ = anyone.status(http.MethodGet, "//readyz/write", nil)
	require.Equal(t, http.StatusServiceUnavailable, status, "without quorum")
	c.start(0)
	c.start(1)
	eventually(t, "the server is ready to write again", is("//readyz/write", 200))
	require.Zero(t, s.end())
}

// TestServicesWaitForTheQuorum stops two of three NATS servers as soon as the control plane listens,
// while its services still subscribe. No service stops the control plane, and all of them work when
// the quorum is back.
func TestServicesWaitForTheQuorum(t *testing.T) {
	c := startNATS(t)
	s := c.serve(t.TempDir(), "--lame-duck", "0s")
	c.stop(1)
	c.stop(2)
	user, anyone := s.user(), s.as("", "")
	eventually(t, "every request to the NATS servers has timed out", func() bool {
		_, stale := user.status(http.MethodGet, "/datasets", nil)
		seconds, _ := strconv.Atoi(stale)
		return seconds > 15
	})
	c.start(1)
	c.start(2)
	eventually(t, "the server is ready to write", func() bool {
		status, _ := anyone.status(http.MethodGet, "//readyz/write", nil)
		return status == http.StatusOK
	})
	s.joined()
	user.must(http.MethodPost, "/datasets", object{"datasetId": "after", "dataset": object{}})
	uploaded, answer, err := user.upload("after", exampleRows(t, 3))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, uploaded, "%v", answer)
	user.until("/datasets/after", "state", "READY")
	require.Zero(t, s.end())
}
