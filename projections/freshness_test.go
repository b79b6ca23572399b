package projections_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/projections"
)

// silentLog is a log whose end cannot be read while silent is true.
type silentLog struct {
	*eventlog.Memory
	silent atomic.Bool
}

func (l *silentLog) Last(ctx context.Context) (eventlog.Checkpoint, error) {
	if l.silent.Load() {
		return eventlog.Checkpoint{}, errors.New("no server responds")
	}
	return l.Memory.Last(ctx)
}

// TestAgeOfAWorld checks that the age of a world grows while the end of the log cannot be read, and
// while the world does not follow the log.
func TestAgeOfAWorld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, w := &silentLog{Memory: eventlog.NewMemory()}, projections.NewWorld()
		require.Zero(t, w.Age(time.Now()))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = w.KeepConfirming(ctx, log) }()
		elapse := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		elapse(10 * time.Second)
		require.LessOrEqual(t, w.Age(time.Now()), projections.ConfirmEvery)
		log.silent.Store(true)
		elapse(10 * time.Second)
		require.InDelta(t, 10*time.Second, w.Age(time.Now()), float64(projections.ConfirmEvery))
		require.Zero(t, w.Behind(), "nothing is known of events that the world lacks")
		log.silent.Store(false)
		elapse(projections.ConfirmEvery)
		require.LessOrEqual(t, w.Age(time.Now()), projections.ConfirmEvery)
		account := logtest.Write("a", 0) // the world does not follow the log
		account.Name, account.Type, account.Data = "accounts/acme", "account.created.v1", []byte("{}")
		logtest.Append(t, log.Memory, account)
		elapse(10 * time.Second)
		require.InDelta(t, 10*time.Second, w.Age(time.Now()), float64(2*projections.ConfirmEvery))
		require.InDelta(t, 10*time.Second, time.Since(w.Behind()), float64(2*projections.ConfirmEvery))
		go func() { _ = w.Run(ctx, log) }()
		elapse(2 * projections.ConfirmEvery)
		require.Zero(t, w.Behind())
	})
}
