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

// recreateStream deletes the log's stream and creates it again.
func recreateStream(t *testing.T, s *natsserver.Server) {
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

// following follows the log after a position in a goroutine. seen receives the events, and ended
// receives the error with which Follow ends.
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
		t.Fatal("the follower continues")
	}
}

// TestAppendDetectsALogThatWasSetBack checks that Append and Last return DataLoss when the log has
// fewer events than the process has seen.
func TestAppendDetectsALogThatWasSetBack(t *testing.T) {
	s := servertest.Start(t)
	for _, id := range []string{"a", "b", "c"} {
		logtest.Append(t, s.Log(), logtest.Write(id, 0))
	}
	seen, ended := following(t, s.Log(), 0)
	for range 3 {
		<-seen
	}
	recreateStream(t, s)
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

// TestFollowDetectsALogThatWasSetBack checks that Follow ends with DataLoss when the log was set
// back, even when other processes have appended as many or more events than the follower has seen.
func TestFollowDetectsALogThatWasSetBack(t *testing.T) {
	for what, appended := range map[string]int{"shorter": 1, "a log of equal length": 3, "longer": 6} {
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
			recreateStream(t, s)
			other = logOn(t, s.Control())
			for i := range appended {
				logtest.Append(t, other, logtest.Write(string(rune('p'+i)), 0))
			}
			requireSetBack(t, ended)
			require.Empty(t, seen, "no event of the other log is delivered")
		})
	}
}

// TestFollowComparesTheLogWithAnEarlierFollower checks that Follow after a position ends with
// DataLoss when the log has another event at that position than the process has appended.
func TestFollowComparesTheLogWithAnEarlierFollower(t *testing.T) {
	s := servertest.Start(t)
	for _, id := range []string{"a", "b"} {
		logtest.Append(t, s.Log(), logtest.Write(id, 0))
	}
	recreateStream(t, s)
	other := logOn(t, s.Control())
	for _, id := range []string{"p", "q", "r"} {
		logtest.Append(t, other, logtest.Write(id, 0))
	}
	seen, ended := following(t, s.Log(), 2)
	requireSetBack(t, ended)
	require.Empty(t, seen)
}

// TestFormerLeaderSetsNothingBack checks that a log of a cluster does not count as set back while a
// server responds that lacks the newest events, as a leader does that was separated from the others
// and has not noticed yet that another server leads.
func TestFormerLeaderSetsNothingBack(t *testing.T) {
	s := servertest.Start(t)
	log, writes := logOn(t, s.Control()), []eventlog.Write{logtest.Write("a", 0), logtest.Write("b", 0)}
	for _, write := range writes {
		logtest.Append(t, log, write)
	}
	recreateStream(t, s) // recreated, the stream lacks the events, as the former leader does
	received, checked := log.InMsgs(), make(chan error, 1)
	go func() { checked <- eventlog.CheckReplicatedHistory(t.Context(), log) }()
	require.Eventually(t, func() bool { return log.InMsgs() >= received+12 || len(checked) > 0 }, time.Minute,
		time.Millisecond)
	require.Empty(t, checked, "it is asked again")
	for _, write := range writes {
		logtest.Append(t, logOn(t, s.Control()), write)
	}
	require.NoError(t, <-checked)
}

// logOn returns the log as another process opens it, without the history of this process.
func logOn(t *testing.T, nc *nats.Conn) *eventlog.JetStream {
	t.Helper()
	log, err := eventlog.NewJetStream(nc)
	require.NoError(t, err)
	return log
}
