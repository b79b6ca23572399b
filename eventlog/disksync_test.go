package eventlog

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog/integrity"
)

// blocks creates a directory with block files that have these numbers, and returns a diskSync on
// the directory.
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
	for joined := false; !joined; { // wait until the caller with the highest position waits for the next round
		d.mu.Lock()
		joined = d.wanted == many+1
		d.mu.Unlock()
	}
	proceed <- struct{}{}
	require.NoError(t, <-first)
	<-begun
	assert.LessOrEqual(t, d.synced.Load(), uint64(1), "a sync that began earlier does not cover them")
	proceed <- struct{}{}
	go func() { // callers that begin to wait after the second round has begun need a third round
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
	require.NoError(t, d.wait(t.Context(), 5), "positions on disk are not waited for")
	require.NoError(t, (*diskSync)(nil).wait(t.Context(), 5))
}

// TestRoundGathersAppends checks that a round covers the appends that the server has not
// acknowledged when the round begins, and that it waits for them no longer than the last sync took.
func TestRoundGathersAppends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := blocks(t, 1)
		const took = time.Millisecond
		syncs := 0
		d.sync = func(*os.File) error { syncs++; time.Sleep(took); return nil }
		appendAfter := func(position uint64, answer time.Duration) time.Duration {
			begun := time.Now()
			at, err := d.publish(func() (uint64, error) { time.Sleep(answer); return position, nil })
			require.NoError(t, err)
			require.NoError(t, d.wait(t.Context(), at))
			return time.Since(begun)
		}
		require.Equal(t, took, appendAfter(1, 0), "one writer does not wait for others")
		require.Equal(t, took, appendAfter(2, 0))

		syncs = 0
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() { appendAfter(uint64(3+i), time.Duration(i+1)*took/20) })
		}
		all.Wait()
		require.Equal(t, 1, syncs)

		all.Go(func() { appendAfter(13, 5*took) }) // a follower receives the event before its writer gets the acknowledgement
		synctest.Wait()
		begun := time.Now()
		require.NoError(t, d.wait(t.Context(), 13))
		require.Equal(t, took, time.Since(begun), "the round does not wait for an append that it covers")
		all.Wait()

		all.Go(func() { appendAfter(20, time.Hour) }) // this append is not acknowledged for an hour
		synctest.Wait()
		require.Equal(t, 2*took, appendAfter(14, 0), "at most the duration of the last sync is added")
		all.Wait()
	})
}

// TestRunningRoundServesLateWaiters checks that a caller that arrives during a round waits only for
// that round if the round syncs the caller's position.
func TestRunningRoundServesLateWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := blocks(t, 1)
		syncs := 0
		d.sync = func(*os.File) error { syncs++; time.Sleep(time.Millisecond); return nil }
		var all sync.WaitGroup
		all.Go(func() { require.NoError(t, d.wait(t.Context(), 5)) })
		synctest.Wait()
		time.Sleep(time.Millisecond / 2)
		begun := time.Now()
		for position := range uint64(5) {
			all.Go(func() {
				require.NoError(t, d.wait(t.Context(), position+1))
				require.Equal(t, time.Millisecond/2, time.Since(begun))
			})
		}
		all.Go(func() { // the running round does not sync this caller's position
			require.NoError(t, d.wait(t.Context(), 6))
			require.Equal(t, 3*time.Millisecond/2, time.Since(begun))
		})
		all.Wait()
		require.Equal(t, 2, syncs)
	})
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
	assert.NotSame(t, before, d.block, "a file that was replaced is opened again")
	d.close()
}

func TestAFailedDiskStaysFailed(t *testing.T) {
	tests := map[string]*diskSync{"no blocks": blocks(t),
		"no directory": newDiskSync(integrity.BlockDir(t.TempDir(), "A", "S")), "a failing sync": blocks(t, 1)}
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
