package disk

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestSyncDirSharesAnFsync checks that calls that arrive while an fsync runs share the next one,
// which begins after they arrived, and receive its error.
func TestSyncDirSharesAnFsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		first, failed := make(chan struct{}), errors.New("the disk failed")
		s := Syncer{sync: func(string) error {
			if calls.Add(1) == 1 {
				<-first
				return nil
			}
			return failed
		}}
		var all sync.WaitGroup
		results := make(chan error, 20)
		all.Go(func() { results <- s.SyncDir("a") })
		synctest.Wait()
		for range 19 {
			all.Go(func() { results <- s.SyncDir("a") })
		}
		synctest.Wait()
		require.EqualValues(t, 1, calls.Load())
		close(first)
		all.Wait()
		close(results)
		shared := 0
		for err := range results {
			if errors.Is(err, failed) {
				shared++
			}
		}
		require.EqualValues(t, 2, calls.Load())
		require.Equal(t, 19, shared)
		require.Empty(t, s.dirs)
	})
}

// TestSyncUpSkipsDurableParents checks which directories are synced: the parents of a directory
// once, and again when another directory replaced it.
func TestSyncUpSkipsDurableParents(t *testing.T) {
	if _, ok := identify(t.TempDir()); !ok {
		t.Skip("the file system does not tell when a directory was created")
	}
	root := t.TempDir()
	var synced []string
	s := Syncer{sync: func(path string) error {
		at, err := filepath.Rel(root, path)
		synced = append(synced, at)
		return err
	}}
	for _, step := range []struct {
		dir    string
		before func() error
		want   []string
	}{
		{"a/b", nil, []string{"a/b", "a", "."}},
		{"a/b", nil, []string{"a/b"}},
		{"a/c", nil, []string{"a/c", "a"}},
		{"a/b/d", nil, []string{"a/b/d", "a/b"}},
		{"a/b", func() error { return os.RemoveAll(filepath.Join(root, "a", "b")) }, []string{"a/b", "a"}},
		{"a/b", func() error { return os.RemoveAll(filepath.Join(root, "a")) }, []string{"a/b", "a", "."}},
		{".", nil, []string{"."}},
	} {
		if step.before != nil {
			require.NoError(t, step.before())
		}
		dir := filepath.Join(root, step.dir)
		require.NoError(t, os.MkdirAll(dir, 0o700))
		synced = nil
		require.NoError(t, s.SyncUp(dir, root))
		require.Equal(t, step.want, synced, step.dir)
	}
	s.linked = nil
	s.sync = func(path string) error {
		if path == root {
			return errors.New("the disk failed")
		}
		return nil
	}
	require.Error(t, s.SyncUp(filepath.Join(root, "a"), root))
	require.Empty(t, s.linked, "a failed fsync proves nothing")
}
