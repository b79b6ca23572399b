package natsserver

import (
	"anneal/eventlog"
	"anneal/eventlog/integrity"
	"anneal/eventlog/logtest"
	"anneal/internal/testutil"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An unsyncedDisk records how many bytes of each file were synced.
type unsyncedDisk struct {
	mu   sync.Mutex
	size map[string]int64
}

func (f *unsyncedDisk) sync(file *os.File) error {
	info, err := file.Stat() // measured before the sync, because writes during the sync may be lost
	if err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.size[filepath.Base(file.Name())] = info.Size()
	return nil
}

// TestPowerFailure checks that a power failure that loses all unsynced writes loses no acknowledged
// event, and no event that a follower received.
func TestPowerFailure(t *testing.T) {
	dir := t.TempDir()
	s := start(t, func(o *Options) { o.Dir, o.NoSync = dir, false })
	disk := &unsyncedDisk{size: map[string]int64{}}
	syncWith(s, disk.sync)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	acknowledged, shown := map[uint64]string{}, map[uint64]string{}
	go func() {
		for e, err := range s.Log().Follow(ctx, "", 0) {
			if err != nil {
				return
			}
			mu.Lock()
			shown[e.Position] = e.ID
			mu.Unlock()
		}
	}()
	enough := make(chan struct{})
	var writers sync.WaitGroup
	for writer := range 16 {
		writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				w := logtest.Write(fmt.Sprintf("w%d-%d", writer, i), 0)
				// large enough that the events fill several block files
				w.Data = []byte(`{"pad":"` + strings.Repeat("x", 40<<10) + `"}`)
				position, err := s.Log().Append(ctx, w)
				if err != nil {
					return
				}
				mu.Lock()
				acknowledged[position] = w.ID
				if len(acknowledged) == 500 {
					close(enough)
				}
				mu.Unlock()
			}
		})
	}
	<-enough
	// The power fails here: the synced parts of the files must contain all events that were
	// acknowledged or received before.
	mu.Lock()
	disk.mu.Lock()
	after := t.TempDir()
	for err := os.CopyFS(after, os.DirFS(dir)); err != nil; err = os.CopyFS(after, os.DirFS(dir)) {
		require.ErrorIs(t, err, os.ErrNotExist, "unless the server replaces a file in the meantime")
		after = t.TempDir()
	}
	kept := disk.size
	expected := []map[uint64]string{acknowledged, shown}
	disk.size, acknowledged, shown = map[string]int64{}, map[uint64]string{}, map[uint64]string{}
	disk.mu.Unlock()
	mu.Unlock()
	cancel()
	writers.Wait()
	s.Close()

	require.Greater(t, len(kept), 1, "several blocks")
	forget(t, after, kept)
	again := start(t, func(o *Options) { o.Dir = after })
	found := map[uint64]string{}
	for _, e := range logtest.Collect(t, again.Log().Read(t.Context(), "", 0)) {
		found[e.Position] = e.ID
	}
	for i, events := range expected {
		require.NotEmpty(t, events)
		for position, id := range events {
			assert.Equal(t, id, found[position], "%d: position %d", i, position)
		}
	}
}

// forget cuts every block file of the log to its synced length in kept, and removes the other files
// in the directory, such as the server's index.
func forget(t *testing.T, store string, kept map[string]int64) {
	dir := integrity.BlockDir(store, "CONTROL", eventlog.Stream)
	entries := testutil.ReadDir(t, dir)
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if !strings.HasSuffix(entry.Name(), ".blk") {
			require.NoError(t, os.Remove(path))
			continue
		}
		info, err := entry.Info()
		require.NoError(t, err)
		require.NoError(t, os.Truncate(path, min(info.Size(), kept[entry.Name()])))
	}
}
