package installation

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog/servertest"
)

var prints = map[string]string{"pepper": "aa", "ring": "bb"}

func own(ring ...string) map[string][]string {
	return map[string][]string{"pepper": {"aa"}, "ring": ring}
}

// join joins and runs a control plane with a fast heartbeat, until the returned function or the
// test ends.
func join(t *testing.T, nc *nats.Conn, id string, eventVersion int) (*Membership, context.CancelFunc) {
	t.Helper()
	m, err := Join(t.Context(), Options{Conn: nc, ID: id, Release: "v1", EventVersion: eventVersion, Keys: own("bb"),
		Logger: slog.New(slog.DiscardHandler), Interval: 20 * time.Millisecond})
	require.NoError(t, err)
	m.Stand()
	ctx, stop := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { _ = m.Run(ctx) })
	t.Cleanup(func() { stop(); ended.Wait() })
	return m, func() { stop(); ended.Wait() }
}

func leads(m *Membership) bool { leads, _ := m.Leads(); return leads }

func eventually(t *testing.T, what string, met func() bool) {
	t.Helper()
	require.Eventually(t, met, 20*time.Second, 5*time.Millisecond, what)
}

func members(t *testing.T, nc *nats.Conn) map[string]Member {
	t.Helper()
	record, ok, err := Read(t.Context(), nc)
	require.NoError(t, err)
	require.True(t, ok)
	return record.Members
}

func TestCheck(t *testing.T) {
	record := Record{Keys: prints, EventVersion: 2}
	const otherRing = "its keys differ from those of the installation (ring)"
	for name, one := range map[string]struct {
		keys    map[string][]string
		version int
		want    []string // parts of the expected error; nil when none is expected
	}{
		"same":           {own("bb"), 2, nil},
		"newer":          {own("bb"), 3, nil},
		"rotating":       {own("cc", "bb"), 2, nil},
		"other ring":     {own("cc"), 2, []string{otherRing, "anneal server join"}},
		"no keys":        {nil, 2, []string{"it has no key named pepper, ring", "nothing was changed"}},
		"older":          {own("bb"), 1, []string{"up to version 1", "start the newer version"}},
		"older and keys": {own("cc"), 1, []string{otherRing, "Also, the log may have events of version 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := record.Check(one.keys, one.version)
			if one.want == nil {
				require.NoError(t, err)
				return
			}
			require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
			for _, part := range one.want {
				require.ErrorContains(t, err, part)
			}
		})
	}
}

// TestCreateOnce lets control planes with different keys create an installation at the same time:
// the keys of exactly one are recorded, and all others are refused.
func TestCreateOnce(t *testing.T) {
	s := servertest.Start(t)
	_, ok, err := Read(t.Context(), s.Control())
	require.NoError(t, err)
	require.False(t, ok)
	const rivals = 8
	var all sync.WaitGroup
	errs := make([]error, rivals)
	for i := range rivals {
		all.Go(func() {
			errs[i] = Create(t.Context(), s.Control(), 1, map[string]string{"pepper": string(rune('a' + i))}, 1)
		})
	}
	all.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		require.ErrorContains(t, err, "its keys differ from those of the installation (pepper)")
	}
	require.Equal(t, 1, won)
}

// TestLeader checks that one of several control planes leads, and that another one takes over when
// the leader has stopped or is silent.
func TestLeader(t *testing.T) {
	s := servertest.Start(t)
	require.NoError(t, Create(t.Context(), s.Control(), 1, prints, 1))
	b, _ := join(t, s.Control(), "b", 1)
	eventually(t, "b leads alone", func() bool { return leads(b) })
	starting, err := Join(t.Context(), Options{Conn: s.Control(), ID: "0", EventVersion: 1, Keys: own("bb"),
		Logger: slog.New(slog.DiscardHandler), Interval: 20 * time.Millisecond})
	require.NoError(t, err)
	starting.send(false)
	a, stopA := join(t, s.Control(), "a", 1)
	eventually(t, "a has the first ID", func() bool { return leads(a) && !leads(b) })
	require.Len(t, members(t, s.Control()), 3, "one of them is still starting, so it does not lead")
	require.NoError(t, starting.Leave(t.Context()))
	stopA()
	eventually(t, "a has said that it stops", func() bool { return leads(b) })
	require.NoError(t, a.Leave(t.Context()))
	require.Len(t, members(t, s.Control()), 1)
}

// TestSilentMembers checks that a control plane that was killed is removed from the record, and
// that one that was removed by mistake is added again.
func TestSilentMembers(t *testing.T) {
	s := servertest.Start(t)
	require.NoError(t, Create(t.Context(), s.Control(), 1, prints, 1))
	b, _ := join(t, s.Control(), "b", 1)
	killed, err := Join(t.Context(), Options{Conn: s.Control(), ID: "a", EventVersion: 1, Keys: own("bb"),
		Logger: slog.New(slog.DiscardHandler)}) // this control plane never calls Run, so it sends no heartbeats
	require.NoError(t, err)
	require.Len(t, members(t, s.Control()), 2)
	eventually(t, "b removes a", func() bool { return len(members(t, s.Control())) == 1 })
	require.True(t, leads(b))
	require.NoError(t, killed.maintain(t.Context()))
	require.Contains(t, members(t, s.Control()), "a")
}

// TestNewEventsWaitForAll checks that the version of events rises only when every control plane can
// read events of that version, and that older control planes are refused afterwards.
func TestNewEventsWaitForAll(t *testing.T) {
	s := servertest.Start(t)
	require.NoError(t, Create(t.Context(), s.Control(), 1, prints, 1))
	old, stopOld := join(t, s.Control(), "old", 1)
	upgraded, _ := join(t, s.Control(), "new", 2)
	require.NoError(t, upgraded.maintain(t.Context()))
	require.Equal(t, 1, upgraded.EventVersion(), "the old control plane could not read events of version 2")
	stopOld()
	require.NoError(t, old.Leave(t.Context()))
	eventually(t, "events of version 2 may be recorded", func() bool { return upgraded.EventVersion() == 2 })
	_, err := Join(t.Context(), Options{Conn: s.Control(), ID: "old", EventVersion: 1, Keys: own("bb"),
		Logger: slog.New(slog.DiscardHandler)})
	require.ErrorContains(t, err, "start the newer version")
	require.ErrorContains(t, old.Run(t.Context()), "start the newer version",
		"a paused control plane stops when it resumes")
	require.NotContains(t, members(t, s.Control()), "old")
}

// TestGaps checks that a control plane that was paused or disconnected does not take the others for
// silent.
func TestGaps(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	m := &Membership{o: Options{ID: "a", Interval: time.Second, Logger: slog.New(slog.DiscardHandler)}, boot: "1",
		now:      func() time.Time { return now },
		received: map[string]time.Time{}, candidates: map[string]time.Time{}, changed: make(chan struct{})}
	m.Stand()
	silent := func(id string) bool { return len(m.silent(map[string]Member{id: {}})) > 0 }
	receive := func(content string) { m.recordHeartbeat(&nats.Msg{Data: []byte(content)}) }
	for range 2 * removeAfter {
		now = now.Add(time.Second)
		receive(`{"id":"a","boot":"1"}`)
		receive(`{"id":"0","boot":"2","candidate":true}`)
	}
	require.False(t, silent("0"))
	require.False(t, leads(m))
	now = now.Add(time.Hour) // the process is paused for an hour
	m.elect()
	require.False(t, silent("0"), "nothing was received, not even its own heartbeats")
	require.False(t, leads(m))
	receive(`{"id":"a","boot":"1"}`)
	require.False(t, silent("0"), "the pause has just ended")
	require.False(t, leads(m))
	for range removeAfter {
		now = now.Add(time.Second)
		receive(`{"id":"a","boot":"1"}`)
	}
	require.True(t, silent("0"))
	require.True(t, leads(m))
}
