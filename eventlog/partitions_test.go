package eventlog_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// The model of docs/adr/0073: the log as several streams, each account in one of them.
const (
	modelStreams  = 16 // number of streams; stream 0 has the events of account system, which are nodes and allocations
	modelAccounts = 100_000
	modelWindow   = 1 << 16 // number of events of a stream that the model keeps: at most the lag of a follower
)

// A streamPosition is the position of an event: its stream and its sequence there, from 1.
type streamPosition struct {
	stream   int32
	sequence uint64
}

// A modelEvent is an event of the model.
type modelEvent struct {
	account int32 // account that the event belongs to; 0 is system
	number  uint32
	cause   streamPosition // event that caused this one; the zero value for the event of a request
	moved   bool           // the next event of the account is in another stream
}

// A streamLog is the log as several streams.
type streamLog struct {
	random  *rand.Rand
	streams [modelStreams]struct {
		last   uint64
		events [modelWindow]modelEvent
		recent int // number of events since the last balancing
	}
	home    [modelAccounts]int32  // stream of each account
	numbers [modelAccounts]uint32 // number of events of each account
	// position of the move of the account to its stream, until the account has an event there
	joined  [modelAccounts]streamPosition
	recent  [modelAccounts]uint32 // number of events of each account since the last balancing
	picks   [1 << 20]int32        // accounts drawn by their load: a Zipf distribution with exponent 1.1
	pending []modelEvent          // events that are appended next, because an allocation caused them
	moves   int
	events  int
}

func newStreamLog(random *rand.Rand) *streamLog {
	l := &streamLog{random: random}
	zipf := rand.NewZipf(random, 1.1, 8, modelAccounts-2)
	for i := range l.picks {
		l.picks[i] = int32(zipf.Uint64()) + 1
	}
	for account := range l.home {
		l.home[account] = int32(account*7919%(modelStreams-1)) + 1
	}
	l.home[0] = 0
	return l
}

func (l *streamLog) append(e modelEvent) streamPosition {
	if from := l.joined[e.account]; from.sequence > 0 {
		if e.cause.sequence == 0 { // a request waits for its reply, so its event follows the move of the account
			e.cause = from
		}
		l.joined[e.account] = streamPosition{}
	}
	home := l.home[e.account]
	stream := &l.streams[home]
	l.numbers[e.account]++
	e.number = l.numbers[e.account]
	stream.last++
	stream.events[stream.last%modelWindow] = e
	stream.recent++
	l.recent[e.account]++
	l.events++
	return streamPosition{home, stream.last}
}

// step appends the event of a request. One of ten makes the scheduler allocate, in stream 0, and
// the allocation leads to an event of the account.
func (l *streamLog) step() {
	if n := len(l.pending); n > 0 && l.random.IntN(2) == 0 {
		i := l.random.IntN(n)
		l.append(l.pending[i])
		l.pending[i] = l.pending[n-1]
		l.pending = l.pending[:n-1]
		return
	}
	account := l.picks[l.random.IntN(len(l.picks))]
	at := l.append(modelEvent{account: account})
	if l.random.IntN(10) == 0 {
		allocated := l.append(modelEvent{cause: at})
		l.pending = append(l.pending, modelEvent{account: account, cause: allocated})
	}
}

// balance moves accounts from the stream with the most recent events to the one with the fewest,
// while that narrows the difference. It returns the recent events of the former, divided by the
// mean.
func (l *streamLog) balance() (busiest float64) {
	busy, idle, all := 1, 1, l.streams[1].recent
	for i := 2; i < modelStreams; i++ {
		if l.streams[i].recent > l.streams[busy].recent {
			busy = i
		}
		if l.streams[i].recent < l.streams[idle].recent {
			idle = i
		}
		all += l.streams[i].recent
	}
	busiest = float64(l.streams[busy].recent) * (modelStreams - 1) / float64(all)
	waiting := map[int32]bool{} // accounts whose next event already has a cause in the old stream
	for _, e := range l.pending {
		waiting[e.account] = true
	}
	excess := (l.streams[busy].recent - l.streams[idle].recent) / 2
	for account := 1; account < modelAccounts && excess > 0; account++ {
		n := int(l.recent[account])
		if l.home[account] != int32(busy) || n == 0 || n > excess || waiting[int32(account)] || l.moves > l.events/1000 {
			continue
		}
		l.joined[account] = l.append(modelEvent{account: int32(account), moved: true})
		l.home[account] = int32(idle)
		l.moves++
		excess -= n
	}
	for i := range l.streams {
		l.streams[i].recent = 0
	}
	clear(l.recent[:])
	return busiest
}

// A streamFollower folds the streams. It applies an event only after the event's cause.
type streamFollower struct {
	log       *streamLog
	waits     bool // the follower waits for the causes of events
	applied   [modelStreams]uint64
	numbers   [modelAccounts]uint32
	orphans   int    // number of applied events whose cause was not applied
	held      int    // how often a stream waited for a cause
	longest   uint64 // maximum number of events that waited in a stream
	reordered int    // number of events that were not the next of their account
}

// follow applies up to n events of a stream.
func (f *streamFollower) follow(i int, n uint64) {
	stream := &f.log.streams[i]
	for upTo := min(f.applied[i]+n, stream.last); f.applied[i] < upTo; {
		e := &stream.events[(f.applied[i]+1)%modelWindow]
		if e.cause.sequence > f.applied[e.cause.stream] {
			if f.waits {
				f.held++
				f.longest = max(f.longest, stream.last-f.applied[i])
				return
			}
			f.orphans++
		}
		if f.numbers[e.account]++; f.numbers[e.account] != e.number {
			f.reordered++
			f.numbers[e.account] = e.number
		}
		f.applied[i]++
	}
}

// lag returns the maximum number of events of a stream that are not applied.
func (f *streamFollower) lag() (lag uint64) {
	for i := range f.applied {
		lag = max(lag, f.log.streams[i].last-f.applied[i])
	}
	return lag
}

// catchUp applies all events. A cause is in the log before its effect, so one stream can always
// proceed.
func (f *streamFollower) catchUp(t *testing.T) {
	for f.lag() > 0 {
		before := f.applied
		for i := range f.applied {
			f.follow(i, modelWindow)
		}
		require.NotEqual(t, before, f.applied, "every stream waits for another")
	}
}

// TestLogOfSeveralStreams simulates followers of a log of several streams that read the streams at
// different speeds, while accounts move between streams. It shows what stays exact: with the rule
// that an event is applied after its cause, each account's events are applied in order, through
// moves, and every vector of positions of a follower contains the cause of each event that it
// contains. Without the rule, neither holds. ANNEAL_EVENTS is the number of events.
func TestLogOfSeveralStreams(t *testing.T) {
	events := testutil.Variable(t, "ANNEAL_EVENTS", 2_000_000)
	random := testutil.Random(t)
	l := newStreamLog(random)
	exact := &streamFollower{log: l, waits: true}
	naive := &streamFollower{log: l}
	followers := []*streamFollower{exact, naive}
	begun, balanced, first, busiest := time.Now(), 0, 0.0, 0.0
	for l.events < events {
		for range 1000 {
			l.step()
		}
		if l.events > balanced+200_000 {
			last := l.balance()
			if balanced == 0 {
				first = last
			}
			busiest, balanced = last, l.events
		}
		for _, f := range followers {
			for i, at := range random.Perm(modelStreams) {
				n := uint64(random.IntN(2000))
				if i == 0 {
					n = modelWindow // this stream catches up with its end
				}
				f.follow(at, n)
			}
			if f.lag() > modelWindow/2 {
				f.catchUp(t)
			}
		}
	}
	exact.catchUp(t)
	naive.catchUp(t)
	t.Logf("%d events of %d accounts in %d streams, %d moves, in %v; the busiest stream had %.2f times the mean without "+
		"moves and has %.2f; a stream "+
		"waited for a cause %d times, with at most %d events; without the rule %d events came before their cause, and %d "+
		"before an earlier event of their account", l.events, modelAccounts, modelStreams, l.moves,
		time.Since(begun).Round(time.Second), first, busiest, exact.held, exact.longest, naive.orphans, naive.reordered)
	require.Zero(t, exact.orphans)
	require.Zero(t, exact.reordered)
	for i := range l.streams {
		require.Equal(t, l.streams[i].last, exact.applied[i], "stream %d", i)
	}
	require.Equal(t, l.numbers, exact.numbers)
	require.Positive(t, naive.orphans)
}
