package logtest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
)

// A Promise is a guarantee that every implementation of eventlog.Log must give, and the test of it.
type Promise struct {
	Name string
	Test func(*testing.T, eventlog.Log)
}

var Promises = []Promise{
	{"a write is checked against its subject", testVersionCheck},
	{"an invalid subject or attribute is refused", testRefused},
	{"an envelope is read back unchanged", testEnvelope},
	{"a long history is read completely", testLongHistory},
	{"a follower receives past and new events", testFollow},
	{"a follower ends with its context", testFollowCancel},
	{"events are found by position", testPlaces},
	{"one of several concurrent writers wins", testRace},
	{"a command is recorded once, even if its acknowledgement is lost", testUncertain},
	{"concurrent commands all take effect", testRacingCommands},
	{"an event records who requested it", testAttributes},
	{"a command that always loses the race fails", testNeverWins},
}

func Name(id string) domain.Name { return domain.NewName("acme", "counters", id) }

func Write(id string, expect uint64) eventlog.Write {
	return eventlog.Write{Expect: expect, Event: eventlog.Event{
		Record: domain.Record{Type: "counter.added.v1", Data: []byte(`{"n":1}`)},
		ID:     uuid.NewString(), Name: Name(id), Time: time.Unix(1_800_000_000, 123_456_789).UTC(),
	}}
}

// Append appends events to a log in order and returns the position of the last one.
func Append(t testing.TB, log eventlog.Log, writes ...eventlog.Write) (position uint64) {
	t.Helper()
	for _, w := range writes {
		var err error
		position, err = log.Append(t.Context(), w)
		require.NoError(t, err)
	}
	return position
}

func Collect(t testing.TB, events iter.Seq2[eventlog.Event, error]) (all []eventlog.Event) {
	t.Helper()
	for e, err := range events {
		require.NoError(t, err)
		all = append(all, e)
	}
	return all
}

func testVersionCheck(t *testing.T, log eventlog.Log) {
	steps := []struct {
		what   string
		id     string
		expect uint64
		want   error
	}{
		{"the first event of a subject", "a", 0, nil},                              // gets position 1
		{"another event at version 0", "a", 0, eventlog.ErrConflict},               //
		{"the first of another subject", "b", 0, nil},                              // gets position 2
		{"at the version of another subject", "a", 2, eventlog.ErrConflict},        //
		{"at a version that does not exist yet", "a", 9, eventlog.ErrConflict},     //
		{"at the newest version", "a", 1, nil},                                     // gets position 3
		{"at a stale version", "a", 1, eventlog.ErrConflict},                       //
		{"at a version of a subject without events", "c", 3, eventlog.ErrConflict}, //
		{"at the newest version, after writes to other subjects", "b", 2, nil},     // gets position 4
	}
	var last uint64
	for _, step := range steps {
		position, err := log.Append(t.Context(), Write(step.id, step.expect))
		require.ErrorIs(t, err, step.want, step.what)
		if step.want == nil {
			last++
			require.Equal(t, last, position, step.what)
		}
	}
	assert.Len(t, Collect(t, log.Read(t.Context(), "", 0)), 4)
}

func testRefused(t *testing.T, log eventlog.Log) {
	with := func(change func(*eventlog.Write)) eventlog.Write {
		w := Write("a", 0)
		change(&w)
		return w
	}
	tests := map[string]eventlog.Write{
		"a wildcard":                    with(func(w *eventlog.Write) { w.Name = "accounts/acme/jobs/*" }),
		"a dot":                         with(func(w *eventlog.Write) { w.Name = "accounts/acme/jobs/a.b" }),
		"a space":                       with(func(w *eventlog.Write) { w.Name = "accounts/acme/jobs/a b" }),
		"an empty token":                with(func(w *eventlog.Write) { w.Name = "accounts/acme/jobs/" }),
		"no name":                       with(func(w *eventlog.Write) { w.Name = "" }),
		"no id":                         with(func(w *eventlog.Write) { w.ID = "" }),
		"no type":                       with(func(w *eventlog.Write) { w.Type = "" }),
		"an attribute that is too long": with(func(w *eventlog.Write) { w.Actor = strings.Repeat("x", 1<<10+1) }),
	}
	for what, w := range tests {
		_, err := log.Append(t.Context(), w)
		var fault *domain.Error
		require.ErrorAs(t, err, &fault, what)
		assert.NotEmpty(t, fault.Message)
	}
	last, err := log.Last(t.Context())
	require.NoError(t, err)
	assert.Zero(t, last, "nothing was recorded")
}

func testEnvelope(t *testing.T, log eventlog.Log) {
	w := eventlog.Write{Event: eventlog.Event{
		Record: domain.Record{Type: "job.attempt-started.v1", Data: []byte(`{"attempt":2,"note":"100 % \"sure\""}`)},
		ID:     uuid.NewString(), Name: "accounts/acme", Time: time.Date(2026, 1, 2, 3, 4, 5, 678_900_001, time.UTC),
		Actor: "Zoë \"the\" 100%\r\nce-type: forged", Command: "c-1", Cause: "e-1", Correlation: "r-1",
		ControlPlane: "cp-1", ClientAddress: "2001:db8::1",
	}}
	w.Position = Append(t, log, w)
	got, err := log.At(t.Context(), w.Position)
	require.NoError(t, err)
	assert.Equal(t, w.Event, got)
	assert.Equal(t, []eventlog.Event{w.Event}, Collect(t, log.Read(t.Context(), w.Name.Subject(), 0)))
	for e, err := range log.Follow(t.Context(), "", 0) {
		require.NoError(t, err)
		assert.Equal(t, w.Event, e)
		break
	}
}

func testLongHistory(t *testing.T, log eventlog.Log) {
	const rounds = 3*256 + 7 // fills more than three pages of Read
	n, err := log.Count(t.Context(), "")
	require.NoError(t, err)
	require.Zero(t, n)
	var a, b, other uint64
	for i := range rounds {
		a = Append(t, log, Write("a", a))
		if i%5 == 0 {
			b = Append(t, log, Write("b", b))
		}
	}
	elsewhere := Write("x", 0)
	elsewhere.Name = "accounts/other/counters/a"
	other = Append(t, log, elsewhere)

	all := Collect(t, log.Read(t.Context(), "", 0))
	require.Len(t, all, int(other))
	for i, e := range all {
		require.Equal(t, uint64(i+1), e.Position)
	}
	history := Collect(t, log.Read(t.Context(), Name("a").Subject(), 0))
	require.Len(t, history, rounds)
	assert.Equal(t, a, history[rounds-1].Position)
	assert.Len(t, Collect(t, log.Read(t.Context(), "events.acme.>", 0)), int(other)-1)
	assert.Len(t, Collect(t, log.Read(t.Context(), "events.*.counters.a", 0)), rounds+1)
	assert.Len(t, Collect(t, log.Read(t.Context(), Name("a").Subject(), history[9].Position)), rounds-10)
	assert.Empty(t, Collect(t, log.Read(t.Context(), "", other)))
	assert.Empty(t, Collect(t, log.Read(t.Context(), "", other+100)))
	assert.Empty(t, Collect(t, log.Read(t.Context(), Name("nobody").Subject(), 0)))

	for filter, want := range map[string]uint64{"": other, "events.>": other, "events.acme.>": other - 1,
		Name("a").Subject():   rounds,
		"events.*.counters.a": rounds + 1, "events.other.counters.>": 1, Name("nobody").Subject(): 0, "events.nobody.>": 0} {
		n, err := log.Count(t.Context(), filter)
		require.NoError(t, err, filter)
		assert.Equal(t, want, n, filter)
	}

	seen := 0
	for range log.Read(t.Context(), "", 0) {
		if seen++; seen == 3 {
			break
		}
	}
	assert.Equal(t, 3, seen, "a reader can stop early")
}

func testFollow(t *testing.T, log eventlog.Log) {
	Append(t, log, Write("a", 0), Write("b", 0), Write("c", 0))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := make(chan eventlog.Event)
	go func() {
		defer close(seen)
		for e, err := range log.Follow(ctx, "events.acme.counters.*", 1) {
			if err != nil {
				return
			}
			seen <- e
		}
	}()
	assert.Equal(t, Name("b"), (<-seen).Name, "the existing events after the position")
	assert.Equal(t, Name("c"), (<-seen).Name)
	hidden := Write("x", 0)
	hidden.Name = "accounts/acme/others/x"
	Append(t, log, hidden)
	position := Append(t, log, Write("a", 1))
	live := <-seen
	assert.Equal(t, Name("a"), live.Name, "after the existing events, Follow returns new events that match the filter")
	assert.Equal(t, position, live.Position)
	cancel()
	for range seen {
		assert.Fail(t, "an event after the follower ended")
	}
}

func testFollowCancel(t *testing.T, log eventlog.Log) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	Append(t, log, Write("a", 0))
	var last error
	count := 0
	for _, err := range log.Follow(ctx, "", 0) {
		count++
		last = err
		cancel()
	}
	assert.ErrorIs(t, last, context.Canceled)
	assert.Equal(t, 2, count, "one event, then the error")
	_, err := log.Append(ctx, Write("b", 0))
	assert.Error(t, err)
}

func testPlaces(t *testing.T, log eventlog.Log) {
	last, err := log.Last(t.Context())
	require.NoError(t, err)
	assert.Zero(t, last)
	_, err = log.At(t.Context(), 1)
	assert.Equal(t, domain.NotFound, domain.CodeOf(err))

	w := Write("b", 0)
	Append(t, log, Write("a", 0))
	position := Append(t, log, w)
	last, err = log.Last(t.Context())
	require.NoError(t, err)
	assert.Equal(t, eventlog.Checkpoint{Position: position, EventID: w.ID}, last)
	e, err := log.At(t.Context(), position)
	require.NoError(t, err)
	assert.Equal(t, w.ID, e.ID)
	for _, nowhere := range []uint64{0, 3, 1 << 40} {
		_, err = log.At(t.Context(), nowhere)
		assert.Equal(t, domain.NotFound, domain.CodeOf(err), nowhere)
	}
}

func testRace(t *testing.T, log eventlog.Log) {
	var version uint64
	for round := range 5 {
		results := make([]error, 16)
		positions := make([]uint64, 16)
		var all sync.WaitGroup
		for i := range results {
			all.Go(func() { positions[i], results[i] = log.Append(t.Context(), Write("a", version)) })
		}
		all.Wait()
		won := 0
		for i, err := range results {
			if err == nil {
				won++
				version = positions[i]
				continue
			}
			require.ErrorIs(t, err, eventlog.ErrConflict)
		}
		require.Equal(t, 1, won, "round %d", round)
	}
	assert.Len(t, Collect(t, log.Read(t.Context(), "", 0)), 5)
}

// A flaky is a Log whose Append returns ErrUncertain according to a plan, whether or not it
// recorded the event.
type flaky struct {
	eventlog.Log
	mu sync.Mutex
	// plan holds the outcomes of the next calls of Append. "ok" and "twice" append the event once
	// or twice; "lost" appends the event and returns ErrUncertain; "never" only returns the error.
	plan  []string
	tries int
}

func (f *flaky) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	f.mu.Lock()
	fate := "ok"
	if len(f.plan) > 0 {
		fate, f.plan = f.plan[0], f.plan[1:]
	}
	f.tries++
	f.mu.Unlock()
	switch fate {
	case "never":
		return 0, fmt.Errorf("%w: injected", eventlog.ErrUncertain)
	case "twice": // a NATS client library may send a message twice
		_, _ = f.Log.Append(ctx, w)
	}
	position, err := f.Log.Append(ctx, w)
	if fate == "lost" && err == nil {
		return 0, fmt.Errorf("%w: injected", eventlog.ErrUncertain)
	}
	return position, err
}

func testUncertain(t *testing.T, log eventlog.Log) {
	rows := Follow(t, log)
	tests := []struct {
		plan  string
		tries int
	}{
		{"ok", 1},
		{"lost", 1},
		{"never", 2},
		{"never lost", 2},
		{"never never never lost", 4},
		{"twice", 1},
	}
	for i, test := range tests {
		t.Run(test.plan, func(t *testing.T) {
			intent := domain.Intend(Counters, Name(fmt.Sprintf("solo-%d", i)), Add{1})
			f := &flaky{Log: log, plan: strings.Fields(test.plan)}
			change, err := eventlog.Do(t.Context(), f, rows, eventlog.Request{Time: time.Now()}, intent)
			require.NoError(t, err)
			require.NoError(t, rows.WaitFor(t.Context(), change.Position()))
			assert.Equal(t, test.tries, f.tries)
			assert.Len(t, Collect(t, log.Read(t.Context(), intent.Name.Subject(), 0)), 1, intent.Name)
			_, version := rows.Row(intent.Name)
			assert.Equal(t, change.Position(), version)
		})
	}
}

func testRacingCommands(t *testing.T, log eventlog.Log) {
	rows := Follow(t, log)
	const writers, each = 8, 10
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			f := &flaky{Log: log, plan: []string{"ok", "lost", "ok", "never", "twice", "lost"}}
			for i := range each {
				for {
					command := fmt.Sprintf("w%d-%d", w, i)
					_, err := eventlog.Do(t.Context(), f, rows, eventlog.Request{Time: time.Now(), Command: command},
						domain.Intend(Counters, Name("a"), Add{1}))
					if domain.CodeOf(err) == domain.Aborted {
						continue // nothing was recorded: with this many concurrent writers, every attempt of Do can lose the race
					}
					// Do returns ErrUncertain after an append that was not acknowledged; the event may be
					// recorded.
					if errors.Is(err, eventlog.ErrUncertain) {
						made, lookup := eventlog.Recorded(t.Context(), log, rows, command, Name("a"))
						if assert.NoError(t, lookup) && made.Position() == 0 {
							continue
						}
						break
					}
					assert.NoError(t, err)
					break
				}
			}
		})
	}
	all.Wait()
	commands := map[string]int{}
	for _, e := range Collect(t, log.Read(t.Context(), Name("a").Subject(), 0)) {
		commands[e.Command]++
	}
	assert.Len(t, commands, writers*each)
	for command, times := range commands {
		assert.Equal(t, 1, times, command)
	}
}

func testAttributes(t *testing.T, log eventlog.Log) {
	rows := Follow(t, log)
	request := eventlog.Request{Time: time.Now(), Actor: "accounts/acme/apiKeys/k", Cause: "e", Correlation: "r",
		Trace: domain.Trace{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", State: "a=1,b=\"2 3\""}}
	change, err := eventlog.Do(t.Context(), log, rows, request, domain.Intend(Counters, Name("a"), Add{1}))
	require.NoError(t, err)
	require.NoError(t, rows.WaitFor(t.Context(), change.Position()))
	events := Collect(t, log.Read(t.Context(), "", 0))
	require.Len(t, events, 1)
	assert.Equal(t, [3]string{request.Actor, request.Cause, request.Correlation},
		[3]string{events[0].Actor, events[0].Cause, events[0].Correlation})
	assert.Equal(t, request.Trace, events[0].Trace)
	assert.NotEmpty(t, events[0].Command)
	_, err = eventlog.Do(t.Context(), log, rows, request, domain.Intend(Counters, Name("b"), Add{1000}))
	require.ErrorContains(t, err, "at most 100")
	change, err = eventlog.Do(t.Context(), log, rows, request, domain.Intend(Counters, Name("a"), Add{0}))
	require.NoError(t, err)
	assert.Zero(t, change.Position(), "a command without effect is not recorded")
	assert.Len(t, Collect(t, log.Read(t.Context(), "", 0)), 1, "a refused command is not recorded")
}

type neverWins struct{ eventlog.Log }

func (neverWins) Append(context.Context, eventlog.Write) (uint64, error) {
	return 0, eventlog.ErrConflict
}

func testNeverWins(t *testing.T, log eventlog.Log) {
	_, err := eventlog.Do(t.Context(), neverWins{log}, Follow(t, log), eventlog.Request{Time: time.Now()},
		domain.Intend(Counters, Name("a"), Add{1}))
	assert.Equal(t, domain.Aborted, domain.CodeOf(err))
}
