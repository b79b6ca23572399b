package eventlog_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/servertest"
)

func add(n int) domain.Intent {
	return domain.Intend(logtest.Counters, logtest.Name("a"), logtest.Add{N: n})
}

// A held server does not sync its log before release is called.
type held struct {
	log     *eventlog.JetStream
	rows    *logtest.Rows
	syncs   atomic.Int64
	release func()
}

func holdSyncs(t *testing.T) *held {
	h := &held{log: servertest.Start(t, func(o *natsserver.Options) { o.NoSync = false }).Log()}
	proceed := make(chan struct{})
	h.log.SetBlockSync(func(*os.File) error { h.syncs.Add(1); <-proceed; return nil })
	h.release = sync.OnceFunc(func() { close(proceed) })
	h.rows = logtest.Follow(t, h.log)
	t.Cleanup(h.release)
	return h
}

// do starts Do, and returns when its event is stored. The channel receives the result of Do.
func (h *held) do(t *testing.T, intent domain.Intent) <-chan error {
	stored, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := eventlog.Do(t.Context(), h.log, h.rows, eventlog.Request{Time: time.Now(),
			Stored: sync.OnceFunc(func() { close(stored) })}, intent)
		ended <- err
	}()
	<-stored
	return ended
}

// TestCommandsOnOneResourceShareSyncs checks that commands are decided on events that are stored
// but not durable, and return only when their own events are durable.
func TestCommandsOnOneResourceShareSyncs(t *testing.T) {
	h := holdSyncs(t)
	var results []<-chan error
	for range 10 {
		results = append(results, h.do(t, add(1)))
	}
	for _, result := range results {
		require.Empty(t, result, "no event is durable")
	}
	require.Zero(t, h.rows.Lookup(logtest.Name("a")).Version)
	h.release()
	for _, result := range results {
		require.NoError(t, <-result)
	}
	require.NoError(t, h.rows.WaitFor(t.Context(), 10))
	state, version := h.rows.Row(logtest.Name("a"))
	require.Equal(t, logtest.Counter{Total: 10}, state)
	require.EqualValues(t, 10, version, "no command was recorded twice")
	require.LessOrEqual(t, h.syncs.Load(), int64(3))
	require.Zero(t, h.rows.Lanes())
}

// waitingRows are Rows that signal each call of WaitFor.
type waitingRows struct {
	*logtest.Rows
	waits chan uint64
}

func (r waitingRows) WaitFor(ctx context.Context, position uint64) error {
	r.waits <- position
	return r.Rows.WaitFor(ctx, position)
}

// TestRefusalsAreDurable checks that a command which is refused, or has nothing to record, because
// of an event that is not durable returns only when the event is durable.
func TestRefusalsAreDurable(t *testing.T) {
	for name, test := range map[string]struct {
		n    int
		code domain.Code
	}{"refused": {1, domain.OutOfRange}, "nothing to record": {0, domain.OK}} {
		t.Run(name, func(t *testing.T) {
			h := holdSyncs(t)
			first := h.do(t, add(100))
			rows, second := waitingRows{h.rows, make(chan uint64, 1)}, make(chan error, 1)
			go func() {
				_, err := eventlog.Do(t.Context(), h.log, rows, eventlog.Request{Time: time.Now()}, add(test.n))
				second <- err
			}()
			require.EqualValues(t, 1, <-rows.waits)
			require.Empty(t, second)
			h.release()
			require.NoError(t, <-first)
			require.Equal(t, test.code, domain.CodeOf(<-second))
		})
	}
}

// TestFailedDiskFailsTheWholePipeline checks that a command is not acknowledged if the event on
// which it was decided may be lost.
func TestFailedDiskFailsTheWholePipeline(t *testing.T) {
	log := servertest.Start(t, func(o *natsserver.Options) { o.NoSync = false }).Log()
	proceed := make(chan struct{})
	log.SetBlockSync(func(*os.File) error { <-proceed; return errors.New("input/output error") })
	h := &held{log: log, rows: logtest.NewRows()}
	first, second := h.do(t, add(1)), h.do(t, add(1))
	close(proceed)
	require.ErrorIs(t, <-first, eventlog.ErrUncertain)
	require.ErrorIs(t, <-second, eventlog.ErrUncertain)
}

// TestDoAll checks that intents are executed in order, up to the first that is refused.
func TestDoAll(t *testing.T) {
	t.Run("with one sync", func(t *testing.T) {
		h := holdSyncs(t)
		all := make(chan []error, 1)
		go func() {
			other := domain.Intend(logtest.Counters, logtest.Name("b"), logtest.Add{N: 3})
			changes, errs := eventlog.DoAll(t.Context(), h.log, h.rows, eventlog.Request{Time: time.Now()}, add(1), other,
				add(2), add(0))
			assert.EqualValues(t, 3, changes[2].Position())
			assert.Zero(t, changes[3].Position())
			all <- errs
		}()
		for stored := uint64(0); stored < 3; { // all events are stored, and none is durable
			last, err := eventlog.StoredLast(t.Context(), h.log)
			require.NoError(t, err)
			stored = last
		}
		require.Empty(t, all)
		h.release()
		require.Equal(t, make([]error, 4), <-all)
	})
	t.Run("a refused one", func(t *testing.T) {
		log := eventlog.NewMemory()
		rows := logtest.Follow(t, log)
		changes, errs := eventlog.DoAll(t.Context(), log, rows, eventlog.Request{Time: time.Now()}, add(60), add(60), add(1))
		require.EqualValues(t, 1, changes[0].Position())
		require.NoError(t, errs[0])
		require.Equal(t, domain.OutOfRange, domain.CodeOf(errs[1]))
		require.Equal(t, errs[1], errs[2])
		require.Len(t, logtest.Collect(t, log.Read(t.Context(), "", 0)), 1)
	})
}

// A stuckLog does not return from its first Append.
type stuckLog struct {
	*eventlog.Memory
	first atomic.Bool
}

func (l *stuckLog) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	if l.first.CompareAndSwap(false, true) {
		<-ctx.Done()
		return 0, eventlog.ErrUncertain
	}
	return l.Memory.Append(ctx, w)
}

// TestAStuckAppendDelaysOthersShortly checks that a command waits for its turn for a limited time.
func TestAStuckAppendDelaysOthersShortly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &stuckLog{Memory: eventlog.NewMemory()}
		rows := logtest.NewRows()
		ctx, cancel := context.WithCancel(t.Context())
		stuck := make(chan error, 1)
		go func() {
			_, err := eventlog.Do(ctx, log, rows, eventlog.Request{}, add(1))
			stuck <- err
		}()
		synctest.Wait()
		begun := time.Now()
		_, err := eventlog.Do(t.Context(), log, rows, eventlog.Request{}, add(1))
		require.NoError(t, err)
		require.Equal(t, 100*time.Millisecond, time.Since(begun))
		cancel()
		require.ErrorIs(t, <-stuck, eventlog.ErrUncertain)
	})
}
