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

// silent loses the acknowledgement of what it records, and cannot be read then.
type silent struct{ *eventlog.Memory }

func (s silent) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	_, err := s.Memory.Append(ctx, w)
	return 0, errors.Join(eventlog.ErrUncertain, err)
}

func (s silent) Read(context.Context, string, uint64) iter.Seq2[eventlog.Event, error] {
	return func(yield func(eventlog.Event, error) bool) {
		yield(eventlog.Event{}, domain.Errorf(domain.Unavailable, "the event log does not answer"))
	}
}

// A fault says that nothing was recorded: whoever gets one takes back what he
// prepared. So what may have been recorded is none.
func TestUncertaintyIsNoFault(t *testing.T) {
	log := eventlog.NewMemory()
	_, err := eventlog.Do(t.Context(), silent{log}, logtest.Follow(t, log), eventlog.Request{Time: time.Now()}, domain.Intend(logtest.Counters, logtest.Name("a"), logtest.Add{N: 1}))
	require.ErrorIs(t, err, eventlog.ErrUncertain)
	require.ErrorContains(t, err, "does not answer")
	require.Equal(t, domain.Unknown, domain.CodeOf(err))

	s := servertest.Start(t, func(o *natsserver.Options) { o.NoSync = false })
	s.Log().SetBlockSync(func(f *os.File) error { return errors.New("input/output error") })
	_, err = s.Log().Append(t.Context(), logtest.Write("a", 0))
	require.ErrorIs(t, err, eventlog.ErrUncertain)
	require.Equal(t, domain.Unknown, domain.CodeOf(err))

	// Nobody waits for ever for what a failed disk holds back: the server ends.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, err := range s.Log().Follow(ctx, "", 0) {
		require.ErrorContains(t, err, "input/output error")
	}
	require.NoError(t, ctx.Err())
}

// A late log does not acknowledge the first append, records it only when
// arrives is called, and refuses every later one with a fault.
type late struct {
	*eventlog.Memory
	first *eventlog.Write
	read  func() // before the second look for our own events
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

func TestAfterAnUncertainAppendNoFailureIsAFault(t *testing.T) {
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

// Another process that ran the same command before it died has recorded it,
// and others have gone on from there: the result is what the command produced.
func TestDoReturnsWhatAnEarlierRunOfTheCommandRecorded(t *testing.T) {
	log := eventlog.NewMemory()
	world := logtest.Follow(t, log)
	request := eventlog.Request{Time: time.Now(), Command: "c-1"}
	_, err := eventlog.Do(t.Context(), log, world, eventlog.Request{Time: time.Now()}, domain.Intend(logtest.Counters, logtest.Name("a"), logtest.Add{N: 2}))
	require.NoError(t, err)
	require.NoError(t, world.WaitFor(t.Context(), 1))
	_, err = eventlog.Do(t.Context(), log, world, request, domain.Intend(logtest.Counters, logtest.Name("a"), logtest.Add{N: 3}))
	require.NoError(t, err)
	require.NoError(t, world.WaitFor(t.Context(), 2))
	_, err = eventlog.Do(t.Context(), log, world, eventlog.Request{Time: time.Now()}, domain.Intend(logtest.Counters, logtest.Name("a"), logtest.Add{N: 4}))
	require.NoError(t, err)

	stale := logtest.NewRows()
	result, err := eventlog.Do(t.Context(), log, stale, request, domain.Intend(logtest.Counters, logtest.Name("a"), logtest.Add{N: 3}))
	require.NoError(t, err)
	require.EqualValues(t, 2, result.Position())
	after, err := result.After(world)
	require.NoError(t, err)
	require.Equal(t, logtest.Counter{Total: 5}, after.State)
}
