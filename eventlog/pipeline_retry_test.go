package eventlog_test

import (
	"context"
	"errors"
	"iter"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/servertest"
)

// holdLaterSyncs returns a log with an event that adds 100 to the total, whose later events are
// stored but not synced until release is called.
func holdLaterSyncs(t *testing.T) *held {
	h := &held{log: servertest.Start(t, func(o *natsserver.Options) { o.NoSync = false }).Log()}
	h.rows = logtest.Follow(t, h.log)
	change, err := eventlog.Do(t.Context(), h.log, h.rows, eventlog.Request{Time: time.Now()}, add(100))
	require.NoError(t, err)
	require.NoError(t, h.rows.WaitFor(t.Context(), change.Position()))
	proceed := make(chan struct{})
	h.log.SetBlockSync(func(*os.File) error { <-proceed; return nil })
	h.release = sync.OnceFunc(func() { close(proceed) })
	t.Cleanup(h.release)
	return h
}

// doAs executes an intent with a command ID, and returns when its event is stored or it has looked
// for an event of the command. The result of Do arrives in ended.
func (h *held) doAs(t *testing.T, command string, intent domain.Intent) (ended <-chan error) {
	t.Helper()
	log := &watchedLog{JetStream: h.log, looked: make(chan struct{}, 1)}
	stored, result := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := eventlog.Do(t.Context(), log, h.rows, eventlog.Request{Time: time.Now(), Command: command,
			Stored: sync.OnceFunc(func() { close(stored) })}, intent)
		result <- err
	}()
	select {
	case <-stored:
	case <-log.looked:
	case err := <-result:
		result <- err
	}
	return result
}

// A watchedLog reports when its events are read.
type watchedLog struct {
	*eventlog.JetStream
	looked    chan struct{}
	conflicts chan struct{} // receives an element for each append that lost a race; nil to report none
}

func (l *watchedLog) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	position, err := l.JetStream.Append(ctx, w)
	if errors.Is(err, eventlog.ErrConflict) && l.conflicts != nil {
		l.conflicts <- struct{}{}
	}
	return position, err
}

func (l *watchedLog) Read(ctx context.Context, filter string, position uint64) iter.Seq2[eventlog.Event, error] {
	select {
	case l.looked <- struct{}{}:
	default:
	}
	return l.JetStream.Read(ctx, filter, position)
}

func eventsOf(t *testing.T, log eventlog.Log, command string) (n int) {
	t.Helper()
	for _, e := range logtest.Collect(t, log.Read(t.Context(), "", 0)) {
		if e.Command == command {
			n++
		}
	}
	return n
}

// TestRepeatedCommandIsRecordedOnce checks that a command that is executed twice is recorded once
// and succeeds twice, although another command's event follows its first one, and although the
// state without the events that are not synced would refuse it.
func TestRepeatedCommandIsRecordedOnce(t *testing.T) {
	type step struct {
		command string
		n       int
	}
	for name, steps := range map[string][]step{
		"followed by another command":           {{"c", -1}, {"d", -1}, {"c", -1}},
		"refused without the event before it":   {{"d", -50}, {"c", 10}, {"c", 10}},
		"followed by another, refused at first": {{"d", -50}, {"c", 10}, {"d2", 1}, {"c", 10}},
	} {
		t.Run(name, func(t *testing.T) {
			h := holdLaterSyncs(t)
			var results []<-chan error
			for _, step := range steps {
				results = append(results, h.doAs(t, step.command, add(step.n)))
			}
			h.release()
			for _, result := range results {
				require.NoError(t, <-result)
			}
			require.Equal(t, 1, eventsOf(t, h.log, "c"))
		})
	}
}

// A lateLog does not acknowledge the first append of the command "late", and stores it only when
// deliver is called. It stalls the append of the command "stalled".
type lateLog struct {
	*eventlog.Memory
	release, stalled, looked chan struct{}

	once sync.Once // closes stalled
	mu   sync.Mutex
	late *eventlog.Write
}

func (l *lateLog) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	if w.Command == "stalled" {
		l.once.Do(func() { close(l.stalled) })
		<-l.release
		return 0, eventlog.ErrConflict
	}
	l.mu.Lock()
	first := l.late == nil
	if first {
		l.late = &w
	}
	l.mu.Unlock()
	if first {
		return 0, eventlog.ErrUncertain
	}
	return l.Memory.Append(ctx, w)
}

func (l *lateLog) Read(ctx context.Context, filter string, position uint64) iter.Seq2[eventlog.Event, error] {
	return func(yield func(eventlog.Event, error) bool) {
		for e, err := range l.Memory.Read(ctx, filter, position) {
			if !yield(e, err) {
				return
			}
		}
		select {
		case l.looked <- struct{}{}:
		default:
		}
	}
}

// TestLateEventIsFoundBeforeTheRetry checks that a command is recorded once if its event, which was
// not acknowledged, reaches the log while the retry waits for another command on the resource.
func TestLateEventIsFoundBeforeTheRetry(t *testing.T) {
	log := &lateLog{Memory: eventlog.NewMemory(), release: make(chan struct{}), stalled: make(chan struct{}),
		looked: make(chan struct{}, 1)}
	t.Cleanup(func() { close(log.release) })
	rows := logtest.Follow(t, log.Memory)
	go func() {
		_, _ = eventlog.Do(context.WithoutCancel(t.Context()), log, rows,
			eventlog.Request{Time: time.Now(), Command: "stalled"}, add(1))
	}()
	<-log.stalled
	ended := make(chan error, 1)
	go func() {
		_, err := eventlog.Do(t.Context(), log, rows, eventlog.Request{Time: time.Now(), Command: "late"}, add(1))
		ended <- err
	}()
	<-log.looked // the command has looked for its event, and the log does not have it
	require.Eventually(t, func() bool { return rows.Commands().LaneUsers(logtest.Name("a")) > 1 }, 10*time.Second,
		time.Millisecond)
	_, err := log.Memory.Append(t.Context(), *log.late)
	require.NoError(t, err)
	require.NoError(t, <-ended)
	require.Equal(t, 1, eventsOf(t, log.Memory, "late"))
}

// TestConflictKeepsOwnStoredEvent checks that after a conflict with another control plane, a
// command is not refused on the state before an event that this process has stored.
func TestConflictKeepsOwnStoredEvent(t *testing.T) {
	h := holdLaterSyncs(t)
	first := h.doAs(t, "first", add(-50))
	other := logtest.Write("a", 2) // the event of another control plane, which adds 1
	stored := make(chan struct{})
	other.Stored = func(uint64) { close(stored) }
	go func() { _, _ = h.log.Append(context.WithoutCancel(t.Context()), other) }()
	<-stored
	log := &watchedLog{JetStream: h.log, looked: make(chan struct{}, 1), conflicts: make(chan struct{}, 32)}
	results := make(chan error, 2)
	for _, command := range []string{"loses", "follows"} {
		refused := make(chan error, 1)
		go func() {
			_, err := eventlog.Do(t.Context(), log, h.rows, eventlog.Request{Time: time.Now(), Command: command}, add(10))
			refused <- err
			results <- err
		}()
		select {
		case <-log.conflicts:
		case err := <-refused:
			require.NoError(t, err, command)
		}
	}
	h.release()
	require.NoError(t, <-first)
	require.NoError(t, <-results)
	require.NoError(t, <-results)
}
