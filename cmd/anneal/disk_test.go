//go:build linux

package main_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFullDisk checks that a full disk is reported, that acknowledged events are kept, and that
// work continues when the disk has free space again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t)
	s := serve(t, filepath.Join(dir, "data"), "--worker=false")
	user := s.user()
	user.dataset("before", 5)
	user.must(http.MethodPost, "/datasets", object{"datasetId": "later", "dataset": object{}})

	s.run("log", "verify").ok(t) // the readers' mirror has all events so far

	ballast := filepath.Join(dir, "ballast")
	fill(t, ballast)
	acknowledged := map[string]bool{"before": true, "later": true}
	var lastError object
	for i := 0; lastError == nil; i++ {
		require.Less(t, i, 5000, "a full disk accepts everything")
		id := fmt.Sprintf("during-%d", i)
		status, answer, err := user.do(http.MethodPost, "/datasets",
			object{"datasetId": id, "dataset": object{"displayName": strings.Repeat("x", 60)}})
		require.NoError(t, err, "it still responds")
		switch {
		case status == http.StatusOK:
			acknowledged[id] = true
		default:
			require.Equal(t, http.StatusTooManyRequests, status, "%v", answer)
			require.EqualValues(t, 8, answer["code"])
			lastError = answer
		}
	}
	require.Regexp(t, "disk|space|full", errorMessage(lastError), "the error says what to do")
	status, answer, err := user.upload("later", exampleRows(t, 400))
	require.NoError(t, err)
	require.GreaterOrEqual(t, status, 429, "%v", answer)
	require.Regexp(t, "full", errorMessage(answer))
	require.Equal(t, "ok", user.get("//healthz")["status"])
	for id := range acknowledged {
		user.get("/datasets/" + id)
	}

	require.NoError(t, os.Remove(ballast))
	user.must(http.MethodPost, "/datasets", object{"datasetId": "after", "dataset": object{}})
	for _, id := range []string{"after", "later"} {
		status, answer, err = user.upload(id, exampleRows(t, 5))
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, status, "%v", answer)
		acknowledged[id] = true
	}
	require.Zero(t, s.end())
	s.start()
	for id := range acknowledged {
		s.user().get("/datasets/" + id)
	}
	require.Contains(t, s.run("log", "verify").ok(t), "equal")
}

// TestDiskFillsUnderTheLog fills the disk from another program while the server writes the log. If
// the server has to exit, it must report the cause, and it must lose no acknowledged event.
func TestDiskFillsUnderTheLog(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t)
	s := serve(t, filepath.Join(dir, "data"), "--worker=false", "--listen", freePort(t))
	user := s.user()
	acknowledged := make([][]string, 3)
	var writers sync.WaitGroup
	full := make(chan struct{})
	for w := range acknowledged {
		writers.Go(func() {
			for n := 0; ; n++ {
				id := fmt.Sprintf("w%d-%d", w, n)
				status, _, err := user.do(http.MethodPost, "/datasets", object{"datasetId": id, "dataset": object{}})
				if err == nil && status == http.StatusOK {
					acknowledged[w] = append(acknowledged[w], id)
				}
				select {
				case <-full:
					return
				default:
				}
			}
		})
	}
	ballast := filepath.Join(dir, "ballast")
	fill(t, ballast)
	close(full)
	writers.Wait()

	require.NoError(t, os.Remove(ballast))
	status, _, err := user.do(http.MethodPost, "/datasets", object{"datasetId": "after", "dataset": object{}})
	if err != nil || status != http.StatusOK {
		require.Equal(t, 1, s.await(), "it responds, or exits")
		require.Contains(t, lastLine(s.log.output()), "the disk of the event log failed")
		s.start()
		// The server may have created the dataset before it exited.
		_, _, err = user.do(http.MethodPost, "/datasets", object{"datasetId": "after", "dataset": object{}})
		require.NoError(t, err)
	}
	for _, ids := range acknowledged {
		for _, id := range ids {
			user.get("/datasets/" + id)
		}
	}
	user.get("/datasets/after")
	require.Contains(t, s.run("log", "verify").ok(t), "equal")
	require.Zero(t, s.end())
}

// smallDisk mounts a separate small file system, and returns its directory.
func smallDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a small file system can be mounted by root only")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=128m"); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return dir
}

// fill writes a file until the file system is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	for size := 1 << 20; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		require.True(t, errors.Is(err, syscall.ENOSPC), "%v", err)
	}
	require.NoError(t, f.Close())
}
