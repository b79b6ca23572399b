package eventlog_test

import (
	"anneal/eventlog/servertest"
	"context"
	"errors"
	"iter"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/eventlog/natsserver"
)

// A losing is a log whose Append records the event but returns ErrUncertain, and whose Read fails.
type losing struct{ *eventlog.Memory }

func (s losing) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	_, err := s.Memory.Append(ctx, w)
	return 0, errors.Join(eventlog.ErrUncertain, err)
}

func (s losing) Read(context.Context, string, uint64) iter.Seq2[eventlog.Event, error] {
	return func(yield func(eventlog.Event, error) bool) {
		yield(eventlog.Event{}, domain.Errorf(domain.Unavailable, "the event log does not respond"))
	}
}

// TestUncertainErrorsAreNoDomainErrors checks that an error of Do or Append after which the event
// may be recorded is not a domain error. After a domain error, callers undo their preparations,
// because nothing was recorded.
func TestUncertainErrorsAreNoDomainErrors(t *testing.T) {
	log := eventlog.NewMemory()
	_, err := eventlog.Do(t.Context(), losing{log}, logtest.Follow(t, log), eventlog.Request{Time: time.Now()},
		domain.Intend(logtest.Counters, logtest.Name("a"), logtest.Add{N: 1}))
	require.ErrorIs(t, err, eventlog.ErrUncertain)
	require.ErrorContains(t, err, "does not respond")
	require.Equal(t, domain.Unknown, domain.CodeOf(err))

	s := servertest.Start(t, func(o *natsserver.Options) { o.NoSync = false })
	s.Log().SetBlockSync(func(f *os.File) error { return errors.New("input/output error") })
	_, err = s.Log().Append(t.Context(), logtest.Write("a", 0))
	require.ErrorIs(t, err, eventlog.ErrUncertain)
	require.Equal(t, domain.Unknown, domain.CodeOf(err))

	// Follow returns the error of a failed sync instead of waiting forever for the event that is
	// not on disk.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, err := range s.Log().Follow(ctx, "", 0) {
		require.ErrorContains(t, err, "input/output error")
	}
	require.NoError(t, ctx.Err())
}

// A late is a log whose first Append returns ErrUncertain and records the event only when arrives
// is called. Every later Append returns a domain error.
type late struct {
	*eventlog.Memory
	first *eventlog.Write
	read  func() // if not nil, the second Read calls it first
	looks int
}

func (l *late) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	if l.first == nil {
		l.first = &w
		return 0, eventlog.ErrUncertain
	}
	f := domain.Errorf(domain.Unavailable, "the disk is full: nothing was recorded")
	f.Reason = "DISK_FULL"
	return 0, f
}

func (l *late) arrives() { _, _ = l.Memory.Append(context.Background(), *l.first) }

func (l *late) Read(ctx context.Context, filter string, after uint64) iter.Seq2[eventlog.Event, error] {
	if l.looks++; l.looks == 2 && l.read != nil {
		l.read()
	}
	return l.Memory.Read(ctx, filter, after)
}

func TestAfterAnUncertainAppendErrorsAreUncertain(t *testing.T) {
	log := &late{Memory: eventlog.NewMemory()}
	intent := domain.Intend(logtest.Counters, logtest.Name("a"), logtest.Add{N: 1})
	_, err := eventlog.Do(t.Context(), log, logtest.Follow(t, log.Memory), eventlog.Request{Time: time.Now()}, intent)
	require.ErrorIs(t, err, eventlog.ErrUncertain, "the first append may still arrive")
	require.Equal(t, domain.Unknown, domain.CodeOf(err))

	log = &late{Memory: eventlog.NewMemory()}
	log.read = log.arrives
	change, err := eventlog.Do(t.Context(), log, logtest.Follow(t, log.Memory), eventlog.Request{Time: time.Now()}, intent)
	require.NoError(t, err, "it arrived before Do gave up")
	require.EqualValues(t, 1, change.Position())
	after, err := change.After(logtest.NewRows())
	require.NoError(t, err)
	require.Equal(t, logtest.Counter{Total: 1}, after.State)
}

// A replaced is a log whose Append returns ErrUncertain and appends the event of another client
// instead.
type replaced struct{ *eventlog.Memory }

func (l replaced) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	_, err := l.Memory.Append(ctx, logtest.Write("a", w.Expect))
	return 0, errors.Join(eventlog.ErrUncertain, err)
}

// TestStaleIntentAfterALostAppend checks that Do returns ErrStale, not ErrUncertain, for an intent
// that requires one version of its row when another event was appended after an append that was not
// acknowledged. The lost append expected the same version, so the server will refuse it.
func TestStaleIntentAfterALostAppend(t *testing.T) {
	log := eventlog.NewMemory()
	rows := logtest.Follow(t, log)
	version, err := log.Append(t.Context(), logtest.Write("a", 0))
	require.NoError(t, err)
	require.NoError(t, rows.WaitFor(t.Context(), version))
	intent := domain.Intend(logtest.Counters, logtest.Name("a"), logtest.Add{N: 1}).At(version)
	_, err = eventlog.Do(t.Context(), replaced{log}, rows, eventlog.Request{Time: time.Now()}, intent)
	require.ErrorIs(t, err, domain.ErrStale)
	_, err = eventlog.Do(t.Context(), log, rows, eventlog.Request{Time: time.Now()}, intent)
	require.ErrorIs(t, err, domain.ErrStale)
	require.EqualValues(t, 2, must(log.Last(t.Context())).Position, "nothing was recorded for a stale intent")
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// TestDoReturnsWhatAnEarlierRunOfTheCommandRecorded checks that Do of a command that an earlier
// process recorded returns the recorded change, also when later events followed.
func TestDoReturnsWhatAnEarlierRunOfTheCommandRecorded(t *testing.T) {
	log := eventlog.NewMemory()
	world := logtest.Follow(t, log)
	request := eventlog.Request{Time: time.Now(), Command: "c-1"}
	_, err := eventlog.Do(t.Context(), log, world, eventlog.Request{Time: time.Now()},
		domain.Intend(logtest.Counters, logtest.Name("a"), logtest.Add{N: 2}))
	require.NoError(t, err)
	require.NoError(t, world.WaitFor(t.Context(), 1))
	_, err = eventlog.Do(t.Context(), log, world, request,
		domain.Intend(logtest.Counters, logtest.Name("a"), logtest.Add{N: 3}))
	require.NoError(t, err)
	require.NoError(t, world.WaitFor(t.Context(), 2))
	_, err = eventlog.Do(t.Context(), log, world, eventlog.Request{Time: time.Now()},
		domain.Intend(logtest.Counters, logtest.Name("a"), logtest.Add{N: 4}))
	require.NoError(t, err)

	stale := logtest.NewRows()
	result, err := eventlog.Do(t.Context(), log, stale, request,
		domain.Intend(logtest.Counters, logtest.Name("a"), logtest.Add{N: 3}))
	require.NoError(t, err)
	require.EqualValues(t, 2, result.Position())
	after, err := result.After(world)
	require.NoError(t, err)
	require.Equal(t, logtest.Counter{Total: 5}, after.State)
}
