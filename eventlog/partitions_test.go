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
	delta   int8           // change of the account's number of resources
}

// modelQuota is the maximum number of resources of an account.
const modelQuota = 8

// A vector has a sequence for each stream.
type vector [modelStreams]uint64

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
	usage   [modelAccounts]int8   // number of resources of each account
	// used returns the usage on which a request is decided; nil is the usage in the account's stream
	used func(account int32) int8
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
	l.usage[e.account] += e.delta
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
	used := l.usage[account]
	if l.used != nil {
		used = l.used(account)
	}
	delta := int8(1)
	if used >= modelQuota || used > 0 && l.random.IntN(2) == 0 {
		delta = -1
	}
	at := l.append(modelEvent{account: account, delta: delta})
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

// ends returns the vector of the last events of all streams.
func (l *streamLog) ends() (v vector) {
	for i := range l.streams {
		v[i] = l.streams[i].last
	}
	return v
}

// TestLogOfSeveralStreams simulates a log of several streams, between which accounts move, and its
// readers, which read the streams at different speeds. It shows what stays exact with the rule that
// an event is applied after its cause: each account's events are applied in order, through moves;
// every vector of positions that a follower passes is closed and not smaller than the one before; a
// read of all accounts at such a vector gives the same state to every reader; no account exceeds
// its quota; and a subscription that starts again from a stored vector skips nothing. ANNEAL_EVENTS
// is the number of events.
func TestLogOfSeveralStreams(t *testing.T) {
	events := testutil.Variable(t, "ANNEAL_EVENTS", 1_000_000)
	random := testutil.Random(t)
	l := newStreamLog(random)
	r := newStreamReaders(l)
	begun, balanced, reported, first, busiest := time.Now(), 0, 0, 0.0, 0.0
	report := func() {
		t.Logf("%d events of %d accounts in %d streams, %d moves, in %v; the busiest stream had %.2f times the mean without "+
			"moves and has %.2f; a stream waited for a cause %d times, with at most %d events; %d reads of all accounts at a "+
			"vector; %d restarts of the subscription, which delivered %d events again", l.events, modelAccounts,
			modelStreams, l.moves, time.Since(begun).Round(time.Second), first, busiest, r.follower.waited, r.follower.longest,
			r.reads, r.restarts, r.repeated)
	}
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
		r.round(t, random)
		if l.events >= reported+100_000_000 {
			report()
			reported = l.events
		}
	}
	r.follower.catchUp(t)
	r.subscription.catchUp(t)
	report()
	for _, f := range []*streamFollower{r.follower, r.reader, r.subscription} {
		require.Zero(t, f.violations)
	}
	require.Zero(t, r.missed)
	require.Equal(t, l.ends(), r.follower.applied)
	require.Equal(t, l.numbers, r.follower.numbers)
	require.Equal(t, l.usage, r.follower.usage)
	require.Equal(t, l.numbers, r.delivered)
	require.Positive(t, r.reads)
	require.Positive(t, r.restarts)
}
