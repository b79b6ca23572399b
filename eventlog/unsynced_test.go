package eventlog_test

import (
	"anneal/eventlog"
	"anneal/eventlog/integrity"
	"anneal/eventlog/logtest"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/pubsub"
	"anneal/eventlog/servertest"
	"context"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// unsynced starts a server and appends two events to its log. The NATS server has acknowledged the
// event at position 2, but the sync of the block file that contains the event does not return
// before the test ends. unsynced returns the server and the ID of that event, hidden.
func unsynced(t *testing.T) (s *natsserver.Server, hidden string) {
	s = servertest.Start(t, func(o *natsserver.Options) { o.NoSync = false })
	logtest.Append(t, s.Log(), logtest.Write("a", 0))
	begun, release := make(chan struct{}, 4), make(chan struct{})
	s.Log().SetBlockSync(func(*os.File) error { begun <- struct{}{}; <-release; return nil })
	w := logtest.Write("b", 0)
	m := eventlog.Encode(w.Event)
	position, err := s.Log().PublishOnce(t.Context(), m)
	require.NoError(t, err)
	require.EqualValues(t, 2, position)
	ended := make(chan error, 1)
	go func() { ended <- s.Log().WaitDurable(context.WithoutCancel(t.Context()), position) }()
	// this cleanup runs before the one that closes the server
	t.Cleanup(func() { close(release); assert.NoError(t, <-ended) })
	<-begun // after this, further callers wait for the next round
	return s, w.ID
}

// TestNoReadReturnsUnsyncedEvents checks that no method of the log returns an event, or a position
// or count that includes the event, before the event is on disk, because a power failure could
// remove the event from the log.
func TestNoReadReturnsUnsyncedEvents(t *testing.T) {
	// Each function reads the log until its context is done, and returns the positions and counts
	// that it received.
	reads := map[string]func(context.Context, *eventlog.JetStream) []uint64{
		"Read": func(ctx context.Context, l *eventlog.JetStream) (seen []uint64) {
			for e, err := range l.Read(ctx, "", 0) {
				if err == nil {
					seen = append(seen, e.Position)
				}
			}
			return seen
		},
		"Follow": func(ctx context.Context, l *eventlog.JetStream) (seen []uint64) {
			for e, err := range l.Follow(ctx, "", 0) {
				if err == nil {
					seen = append(seen, e.Position)
				}
			}
			return seen
		},
		"Count": func(ctx context.Context, l *eventlog.JetStream) []uint64 {
			n, err := l.Count(ctx, "")
			if err != nil {
				return nil
			}
			return []uint64{n}
		},
		"At": func(ctx context.Context, l *eventlog.JetStream) []uint64 {
			e, _ := l.At(ctx, 2)
			return []uint64{e.Position}
		},
		"Last": func(ctx context.Context, l *eventlog.JetStream) []uint64 {
			place, err := l.Last(ctx)
			if err != nil {
				return nil
			}
			return []uint64{place.Position}
		},
		// A consumer cannot acknowledge an event that no handler has received.
		"Acknowledged": func(ctx context.Context, l *eventlog.JetStream) []uint64 {
			position, _ := l.Acknowledged(ctx, "nobody")
			return []uint64{position}
		},
		"Observe": func(ctx context.Context, l *eventlog.JetStream) (seen []uint64) {
			l.Observe(func(m integrity.Message) { seen = append(seen, m.Position()) })
			for range l.Follow(ctx, "", 0) {
			}
			return seen
		},
		"Messages.Each": func(ctx context.Context, l *eventlog.JetStream) (seen []uint64) {
			_ = eventlog.MessagesOf(l).Each(ctx, 0, 2, func(m integrity.Message) error {
				seen = append(seen, m.Position())
				return nil
			})
			return seen
		},
		"Messages.At": func(ctx context.Context, l *eventlog.JetStream) []uint64 {
			m, _ := eventlog.MessagesOf(l).At(ctx, 2)
			return []uint64{m.Position()}
		},
		"Append": func(ctx context.Context, l *eventlog.JetStream) []uint64 {
			position, _ := l.Append(ctx, logtest.Write("c", 0))
			return []uint64{position}
		},
	}
	// Methods of the log that read no events, and methods in export_test.go.
	other := []string{"UseFiles", "DecideAs", "RequireReadable",
		"CloseFiles", "WaitDurable", "Verify", "SetBlockSync", "NextRoundAwaited",
		"PublishOnce", "InMsgs"}
	logType := reflect.TypeFor[*eventlog.JetStream]()
	for i := range logType.NumMethod() {
		if slices.Contains(other, logType.Method(i).Name) {
			continue
		}
		require.Contains(t, reads, logType.Method(i).Name, "a new method of the log must be tested for waiting for the disk")
	}
	for name, read := range reads {
		t.Run(name, func(t *testing.T) {
			s, _ := unsynced(t)
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			for _, position := range read(ctx, s.Log()) {
				assert.Less(t, position, uint64(2))
			}
		})
	}
}

// TestNothingElseReturnsUnsyncedEvents checks that Recorded, resolve and handlers of events return
// and receive no event that is not on disk.
func TestNothingElseReturnsUnsyncedEvents(t *testing.T) {
	t.Run("Recorded and resolve", func(t *testing.T) {
		s, _ := unsynced(t)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		result, err := eventlog.Recorded(ctx, s.Log(), logtest.NewRows(), "", logtest.Name("b"))
		assert.Zero(t, result.Position())
		require.Error(t, err)
		ours, err := eventlog.Resolve(ctx, s.Log(), logtest.NewRows(), logtest.Name("b"))
		assert.Zero(t, ours.Position())
		require.Error(t, err)
	})
	t.Run("a handler of events", func(t *testing.T) {
		s, hidden := unsynced(t)
		router, err := pubsub.NewRouter(s.Control(), pubsub.RouterConfig{})
		require.NoError(t, err)
		seen := make(chan string, 4)
		require.NoError(t, pubsub.HandleEvents(router, "h", "", func(_ context.Context, e eventlog.Event) error {
			seen <- e.ID
			return nil
		}, nil))
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		require.NoError(t, router.Run(ctx))
		close(seen)
		var ids []string
		for id := range seen {
			ids = append(ids, id)
		}
		assert.Len(t, ids, 1)
		assert.NotContains(t, ids, hidden)
	})
}
