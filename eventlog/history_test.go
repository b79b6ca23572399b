package eventlog_test

import (
	"anneal/eventlog/servertest"
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/integrity"
	"anneal/eventlog/logtest"
	"anneal/eventlog/natsserver"
)

// madeAnew deletes the log's stream and makes it again.
func madeAnew(t *testing.T, s *natsserver.Server) {
	t.Helper()
	js := servertest.JetStream(t, s.Control())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := js.Stream(ctx, eventlog.Stream)
	require.NoError(t, err)
	require.NoError(t, js.DeleteStream(ctx, eventlog.Stream))
	_, err = js.CreateStream(ctx, stream.CachedInfo().Config)
	require.NoError(t, err)
}

// following follows the log after a position; ended has its last error.
func following(t *testing.T, log *eventlog.JetStream, after uint64) (seen <-chan eventlog.Event, ended <-chan error) {
	events, last := make(chan eventlog.Event, 100), make(chan error, 1)
	go func() {
		for e, err := range log.Follow(t.Context(), "", after) {
			if err != nil {
				last <- err
				return
			}
			events <- e
		}
	}()
	return events, last
}

func requireSetBack(t *testing.T, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		require.Equal(t, domain.DataLoss, domain.CodeOf(err), "%v", err)
		require.True(t, integrity.IsDamaged(err))
	case <-time.After(time.Minute):
		t.Fatal("the follower goes on")
	}
}

// A process never goes on over a log that holds less than it has seen.
func TestAppendNoticesALogThatWasSetBack(t *testing.T) {
	s := servertest.Start(t)
	for _, id := range []string{"a", "b", "c"} {
		logtest.Append(t, s.Log(), logtest.Write(id, 0))
	}
	seen, ended := following(t, s.Log(), 0)
	for range 3 {
		<-seen
	}
	madeAnew(t, s)
	_, err := s.Log().Append(t.Context(), logtest.Write("d", 0))
	require.ErrorIs(t, err, eventlog.ErrUncertain, "it may be recorded")
	require.Equal(t, domain.DataLoss, domain.CodeOf(err))
	require.True(t, integrity.IsDamaged(err))
	requireSetBack(t, ended)

	_, err = s.Log().Append(t.Context(), logtest.Write("e", 0))
	require.Equal(t, domain.DataLoss, domain.CodeOf(err))
	require.NotErrorIs(t, err, eventlog.ErrUncertain, "it was not sent")
	_, err = s.Log().Last(t.Context())
	require.True(t, integrity.IsDamaged(err))
}

// A process that only follows notices it too, also when others have appended
// past its position.
func TestFollowNoticesALogThatWasSetBack(t *testing.T) {
	for what, appended := range map[string]int{"shorter": 1, "as long": 3, "longer": 6} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := servertest.Start(t)
			other := logOn(t, s.Control())
			for _, id := range []string{"a", "b", "c"} {
				logtest.Append(t, other, logtest.Write(id, 0))
			}
			seen, ended := following(t, s.Log(), 0)
			for range 3 {
				<-seen
			}
			madeAnew(t, s)
			other = logOn(t, s.Control())
			for i := range appended {
				logtest.Append(t, other, logtest.Write(string(rune('p'+i)), 0))
			}
			requireSetBack(t, ended)
			require.Empty(t, seen, "nothing of the other log is shown")
		})
	}
}

// A follower that begins again where another ended holds the log against what
// that one saw.
func TestFollowHoldsTheLogAgainstAnEarlierFollower(t *testing.T) {
	s := servertest.Start(t)
	for _, id := range []string{"a", "b"} {
		logtest.Append(t, s.Log(), logtest.Write(id, 0))
	}
	madeAnew(t, s)
	other := logOn(t, s.Control())
	for _, id := range []string{"p", "q", "r"} {
		logtest.Append(t, other, logtest.Write(id, 0))
	}
	seen, ended := following(t, s.Log(), 2)
	requireSetBack(t, ended)
	require.Empty(t, seen)
}

// logOn is another process's view of the log.
func logOn(t *testing.T, nc *nats.Conn) *eventlog.JetStream {
	t.Helper()
	log, err := eventlog.NewJetStream(nc)
	require.NoError(t, err)
	return log
}
