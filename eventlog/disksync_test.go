package eventlog

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog/integrity"
)

// blocks makes a folder of block files and a diskSync on it.
func blocks(t *testing.T, numbers ...int) *diskSync {
	store := t.TempDir()
	d := newDiskSync(integrity.BlockDir(store, "A", "S"))
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
	tests := map[string]*diskSync{"no blocks": blocks(t), "no folder": newDiskSync(integrity.BlockDir(t.TempDir(), "A", "S")), "a failing sync": blocks(t, 1)}
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
}
