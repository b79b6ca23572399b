package eventlog_test

import (
	"anneal/eventlog"
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

// unsynced is a log whose event at position 2 is acknowledged by the server but
// not on disk: its sync does not return before the test ends.
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
	t.Cleanup(func() { close(release); assert.NoError(t, <-ended) }) // before the server is closed
	<-begun                                                          // whoever comes now waits for the next round
	return s, w.ID
}

// No read answers an event, or a position or number that includes it, before
// the event is on disk: a power failure would take back what was shown.
func TestNoReadShowsWhatIsNotOnDisk(t *testing.T) {
	// Each answers the positions it was shown; it ends with its context.
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
		"Acknowledged": func(ctx context.Context, l *eventlog.JetStream) []uint64 { // what handlers were given, which waits
			position, _ := l.Acknowledged(ctx, "nobody")
			return []uint64{position}
		},
		"Append": func(ctx context.Context, l *eventlog.JetStream) []uint64 {
			position, _ := l.Append(ctx, logtest.Write("c", 0))
			return []uint64{position}
		},
	}
	// Those that read nothing, and of export_test.go.
	other := []string{"UseFiles", "CloseFiles", "WaitDurable", "Verify", "SetBlockSync", "NextRoundAwaited", "PublishOnce", "InMsgs"}
	logType := reflect.TypeFor[*eventlog.JetStream]()
	for i := range logType.NumMethod() {
		if slices.Contains(other, logType.Method(i).Name) {
			continue
		}
		require.Contains(t, reads, logType.Method(i).Name, "a new method of the log must be shown to wait for the disk")
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

// Nor do those that are built on the reads, or read the stream by themselves.
func TestNothingElseShowsWhatIsNotOnDisk(t *testing.T) {
	t.Run("Recorded and settle", func(t *testing.T) {
		s, _ := unsynced(t)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		result, err := eventlog.Recorded(ctx, s.Log(), logtest.NewRows(), "", logtest.Name("b"))
		assert.Zero(t, result.Position())
		require.Error(t, err)
		ours, err := eventlog.Settle(ctx, s.Log(), logtest.NewRows(), logtest.Name("b"))
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
