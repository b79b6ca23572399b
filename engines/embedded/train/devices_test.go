package train

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDevicesAreGrantedInOrder checks that phases get devices in the order in which they came, also
// behind one that needs many, and that one that is canceled leaves the queue.
func TestDevicesAreGrantedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := devicesOf(2)
		first, err := d.acquire(t.Context(), needs(1))
		require.NoError(t, err)
		canceled, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i, need := range []int{2, 1, 1} {
			ctx := t.Context()
			if i == 1 {
				ctx = canceled
			}
			wg.Go(func() {
				release, err := d.acquire(ctx, needs(need))
				if err != nil {
					require.ErrorIs(t, err, context.Canceled)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Second)
				release()
			})
			synctest.Wait()
		}
		require.Empty(t, order, "one device is free, but the phase at the head needs two")
		cancel()
		synctest.Wait()
		first()
		wg.Wait()
		require.Equal(t, []int{0, 2}, order)
		require.Equal(t, 2, d.free)
	})
}

// TestDevicesInUseAreRemovedLater checks that devices of a training that has ended are removed when
// another training has released them.
func TestDevicesInUseAreRemovedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := devicesOf(2)
		first, err := d.acquire(t.Context(), needs(1))
		require.NoError(t, err)
		second, err := d.acquire(t.Context(), needs(1))
		require.NoError(t, err)
		d.Add(-1)
		first()
		granted := false
		go func() {
			release, err := d.acquire(t.Context(), needs(1))
			require.NoError(t, err)
			granted = true
			release()
		}()
		synctest.Wait()
		require.False(t, granted, "one device is left, and it is in use")
		second()
		synctest.Wait()
		require.True(t, granted)
	})
}

// TestTurnsHoldDevicesOnce checks that concurrent calls of a phase hold its devices once, until the
// last one ends.
func TestTurnsHoldDevicesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := devicesOf(1)
		turn := newTurn(&phases{devices: [phaseCount]*Devices{d, d, d}, cores: 1}, phaseGenerate)
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				require.NoError(t, turn.during(t.Context(), func() error {
					time.Sleep(time.Duration(i+1) * time.Second)
					return nil
				}))
			})
		}
		synctest.Wait()
		release, err := d.acquire(t.Context(), needs(1))
		require.NoError(t, err)
		require.Equal(t, 5*time.Second, time.Since(start))
		release()
		wg.Wait()
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		hold, err := d.acquire(t.Context(), needs(1))
		require.NoError(t, err)
		require.ErrorIs(t, turn.during(canceled, func() error { return nil }), context.Canceled)
		hold()
		require.Equal(t, 1, d.free)
	})
}

// TestTrainingsHaveTheirOwnDevicesFirst checks that a training without devices gets them before the
// second phase of a training that needs more than are free, and before one that came earlier.
func TestTrainingsHaveTheirOwnDevicesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, large, small := devicesOf(4), needs(3), needs(1)
		generation, err := d.acquire(t.Context(), large)
		require.NoError(t, err)
		var order []string
		go func() {
			step, err := d.acquire(t.Context(), large)
			require.NoError(t, err)
			order = append(order, "second phase")
			step()
		}()
		synctest.Wait()
		release, err := d.acquire(t.Context(), small)
		require.NoError(t, err, "its own device is free")
		order = append(order, "first phase")
		release()
		generation()
		synctest.Wait()
		require.Equal(t, []string{"first phase", "second phase"}, order)
		require.Equal(t, 4, d.free)
		require.Empty(t, d.held)
	})
}

// needs returns phases of a training that need n devices.
func needs(n int) *phases { return &phases{cores: n} }
