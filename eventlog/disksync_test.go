package eventlog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// A forgetful disk knows how much of each file was synced.
type forgetful struct {
	mu   sync.Mutex
	size map[string]int64
}

func (f *forgetful) sync(file *os.File) error {
	info, err := file.Stat() // what is written while the sync runs may be lost
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

// A power failure takes whatever was not synced, and no acknowledged event is
// in it, and no event that a follower was shown.
func TestPowerFailure(t *testing.T) {
	dir := t.TempDir()
	s := start(t, func(o *ServerOptions) { o.Dir, o.NoSync = dir, false })
	disk := &forgetful{size: map[string]int64{}}
	s.Log().disk.sync = disk.sync

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
				w := write(fmt.Sprintf("w%d-%d", writer, i), 0)
				w.Data = []byte(`{"pad":"` + strings.Repeat("x", 40<<10) + `"}`) // to fill several blocks
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
	// The power fails here: what was acknowledged or shown by now must be in
	// what was synced by now.
	mu.Lock()
	disk.mu.Lock()
	after := t.TempDir()
	for err := os.CopyFS(after, os.DirFS(dir)); err != nil; err = os.CopyFS(after, os.DirFS(dir)) {
		require.ErrorIs(t, err, os.ErrNotExist, "but that the server replaces a file meanwhile")
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
	again := start(t, func(o *ServerOptions) { o.Dir = after })
	found := map[uint64]string{}
	for _, e := range collect(t, again.Log().Read(t.Context(), "", 0)) {
		found[e.Position] = e.ID
	}
	for i, events := range expected {
		require.NotEmpty(t, events)
		for position, id := range events {
			assert.Equal(t, id, found[position], "%d: position %d", i, position)
		}
	}
}

// forget cuts every block file to what was synced, and the ones to nothing
// that never were; the server's index is lost too.
func forget(t *testing.T, store string, kept map[string]int64) {
	dir := newDiskSync(store, "CONTROL", Stream).dir
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
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

// blocks makes a folder of block files and a diskSync on it.
func blocks(t *testing.T, numbers ...int) *diskSync {
	store := t.TempDir()
	d := newDiskSync(store, "A", "S")
	require.NoError(t, os.MkdirAll(d.dir, 0o700))
	for _, number := range numbers {
		require.NoError(t, os.WriteFile(d.path(number), []byte("x"), 0o600))
	}
	return d
}

func TestOneSyncServesMany(t *testing.T) {
	d := blocks(t, 1)
	begun, proceed := make(chan struct{}), make(chan struct{})
	syncs := 0
	d.sync = func(*os.File) error {
		syncs++
		begun <- struct{}{}
		<-proceed
		return nil
	}
	first := make(chan error, 1)
	go func() { first <- d.wait(t.Context(), 1) }()
	<-begun
	const many = 50
	done := make(chan error, many)
	for i := range many {
		go func() { done <- d.wait(t.Context(), uint64(i+2)) }()
	}
	for joined := false; !joined; { // until the last of them is in the round that follows
		d.mu.Lock()
		joined = d.wanted == many+1
		d.mu.Unlock()
	}
	proceed <- struct{}{}
	require.NoError(t, <-first)
	<-begun
	assert.LessOrEqual(t, d.synced.Load(), uint64(1), "a sync that began earlier promises nothing for them")
	proceed <- struct{}{}
	go func() { // some may have come too late for the second round
		for {
			select {
			case <-begun:
				proceed <- struct{}{}
			case <-t.Context().Done():
				return
			}
		}
	}()
	for range many {
		require.NoError(t, <-done)
	}
	assert.LessOrEqual(t, syncs, 3)
	assert.Equal(t, uint64(many+1), d.synced.Load())
	require.NoError(t, d.wait(t.Context(), 5), "what is on disk is not waited for")
	require.NoError(t, (*diskSync)(nil).wait(t.Context(), 5))
}

func TestSyncFollowsTheBlocks(t *testing.T) {
	d := blocks(t, 2, 3)
	var seen []string
	d.sync = func(f *os.File) error {
		seen = append(seen, filepath.Base(f.Name()))
		return f.Sync()
	}
	position := uint64(0)
	synced := func() []string {
		position++
		seen = nil
		require.NoError(t, d.wait(t.Context(), position))
		return seen
	}
	assert.Equal(t, []string{"3.blk"}, synced())
	for _, number := range []int{4, 5} {
		require.NoError(t, os.WriteFile(d.path(number), nil, 0o600))
	}
	assert.Equal(t, []string{"3.blk", "4.blk", "5.blk"}, synced())
	assert.Equal(t, []string{"5.blk"}, synced())
	require.NoError(t, os.Remove(d.path(5)))
	require.NoError(t, os.WriteFile(d.path(5), []byte("another"), 0o600))
	before := d.block
	assert.Equal(t, []string{"5.blk"}, synced())
	assert.NotSame(t, before, d.block, "a file that was replaced is opened anew")
	d.close()
}

func TestAFailedDiskIsNotBelievedAgain(t *testing.T) {
	tests := map[string]*diskSync{"no blocks": blocks(t), "no folder": newDiskSync(t.TempDir(), "A", "S"), "a failing sync": blocks(t, 1)}
	tests["a failing sync"].sync = func(*os.File) error { return errors.New("input/output error") }
	for what, d := range tests {
		err := d.wait(t.Context(), 1)
		require.Equal(t, domain.Unavailable, domain.CodeOf(err), what)
		d.sync = func(*os.File) error { return nil }
		require.NoError(t, os.MkdirAll(d.dir, 0o700))
		require.NoError(t, os.WriteFile(d.path(1), nil, 0o600))
		assert.Equal(t, err, d.wait(t.Context(), 2), what)
		assert.Zero(t, d.synced.Load(), strconv.Quote(what))
	}
	s := start(t, func(o *ServerOptions) { o.NoSync = false })
	s.Log().disk.sync = func(*os.File) error { return errors.New("input/output error") }
	_, err := s.Log().Append(t.Context(), write("a", 0))
	require.ErrorContains(t, err, "input/output error")
	assert.NotErrorIs(t, err, ErrConflict)
	assert.ErrorIs(t, err, ErrUncertain)
}

func TestAppendThatStopsWaitingIsUncertain(t *testing.T) {
	s := start(t, func(o *ServerOptions) { o.NoSync = false })
	begun, proceed := make(chan struct{}, 2), make(chan struct{})
	s.Log().disk.sync = func(*os.File) error { begun <- struct{}{}; <-proceed; return nil }
	first := make(chan error, 1)
	go func() {
		_, err := s.Log().Append(t.Context(), write("a", 0))
		first <- err
	}()
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() {
		_, err := s.Log().Append(ctx, write("b", 0))
		second <- err
	}()
	for waiting := false; !waiting; {
		s.Log().disk.mu.Lock()
		waiting = s.Log().disk.next.waiting
		s.Log().disk.mu.Unlock()
	}
	cancel()
	assert.ErrorIs(t, <-second, ErrUncertain)
	close(proceed)
	require.NoError(t, <-first)
	assert.Len(t, collect(t, s.Log().Read(t.Context(), "", 0)), 2)
}
