package server

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/eventlog/idempotency"
)

// TestLease checks that only one of two processes holds a lease at a time, that the other one takes
// over when the lease ends, and that a holder stops when its lease was taken.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := idempotency.NewMemory()
		var running [2]atomic.Int32
		start := func(i int) context.CancelFunc {
			ctx, stop := context.WithCancel(t.Context())
			go func() {
				_ = holdLease(ctx, store, "system.x", func(ctx context.Context) error {
					running[i].Add(1)
					defer running[i].Add(-1)
					<-ctx.Done()
					return ctx.Err()
				})
			}()
			synctest.Wait()
			return stop
		}
		wait := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		holders := func() int32 { return running[0].Load() + running[1].Load() }
		stops := [2]context.CancelFunc{start(0), start(1)}
		require.EqualValues(t, 1, running[0].Load())
		require.EqualValues(t, 1, holders())
		wait(25 * time.Hour) // longer than a claim is kept
		require.EqualValues(t, 1, holders())
		first := 0
		if running[1].Load() == 1 {
			first = 1
		}
		stops[first]()
		wait(2 * leaseTime)
		require.EqualValues(t, 1, running[1-first].Load(), "the other has taken over")
		require.EqualValues(t, 1, holders())
		stops[1-first]()
		synctest.Wait()
		require.Zero(t, holders())
	})
}

// TestLostLease checks that a holder stops when its lease was taken by another.
func TestLostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := idempotency.NewMemory()
		stopped := make(chan struct{})
		claim, err := store.Claim(t.Context(), "system.x", []byte("system.x"), time.Now(), leaseTime)
		require.NoError(t, err)
		go func() {
			_ = underLease(t.Context(), store, claim, func(ctx context.Context) error {
				<-ctx.Done()
				close(stopped)
				return ctx.Err()
			})
		}()
		synctest.Wait()
		_, err = store.Claim(t.Context(), "system.x", []byte("system.x"), time.Now().Add(2*leaseTime), leaseTime)
		require.NoError(t, err)
		time.Sleep(leaseTime)
		synctest.Wait()
		select {
		case <-stopped:
		default:
			t.Fatal("the holder continues without the lease")
		}
	})
}
