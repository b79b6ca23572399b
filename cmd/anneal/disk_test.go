package main_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A full disk is said to be full; what was acknowledged stays, and when there
// is room again work goes on.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a small file system can be mounted by root only")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=48m"); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	s := serve(t, filepath.Join(dir, "data"), "--worker=false")
	user := s.user()
	user.dataset("before", 5)
	user.must(http.MethodPost, "/datasets", object{"datasetId": "later", "dataset": object{}})

	ballast := filepath.Join(dir, "ballast")
	fill(t, ballast)
	acknowledged := map[string]bool{"before": true, "later": true}
	var refusal object
	for i := 0; refusal == nil; i++ {
		require.Less(t, i, 5000, "a full disk takes everything")
		id := fmt.Sprintf("during-%d", i)
		status, answer, err := user.ask(http.MethodPost, "/datasets", object{"datasetId": id, "dataset": object{"displayName": strings.Repeat("x", 60)}})
		require.NoError(t, err, "it answers all the same")
		switch {
		case status == http.StatusOK:
			acknowledged[id] = true
		default:
			require.GreaterOrEqual(t, status, 500, "%v", answer)
			refusal = answer
		}
	}
	require.Regexp(t, "disk|space|full", messageOf(refusal), "the answer says what to do about it")
	status, answer, err := user.upload("later", exampleRows(t, 400))
	require.NoError(t, err)
	require.GreaterOrEqual(t, status, 429, "%v", answer)
	require.Regexp(t, "full", messageOf(answer))
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
