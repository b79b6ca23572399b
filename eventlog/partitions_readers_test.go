package eventlog_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// violations are numbers of violations that a streamFollower has found.
type violations struct {
	orphans   int // events that were applied before their cause
	reordered int // events that were not the next of their account
	overQuota int // events after which an account had more resources than its quota, or a negative number
}

// A streamFollower folds the streams. It applies an event only after the event's cause.
type streamFollower struct {
	log     *streamLog
	waits   bool // the follower waits for the causes of events
	applied vector
	numbers [modelAccounts]uint32
	usage   [modelAccounts]int8
	states  [modelAccounts]uint64 // a hash of the events of each account, in their order
	digest  uint64                // a hash of the states of all accounts
	violations
	waited  int    // how often a stream waited for a cause
	longest uint64 // maximum number of events that waited in a stream
	// change returns the event that the follower reads instead of e; nil for the log as it is
	change  func(stream int, sequence uint64, e modelEvent) modelEvent
	deliver func(e modelEvent)
}

// mix is the finalizer of SplitMix64.
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xBF58476D1CE4E5B9
	h = (h ^ h>>27) * 0x94D049BB133111EB
	return h ^ h>>31
}

// follow applies the events of a stream up to a sequence.
func (f *streamFollower) follow(i int, upTo uint64) {
	stream := &f.log.streams[i]
	for f.applied[i] < upTo {
		e := stream.events[(f.applied[i]+1)%modelWindow]
		if f.change != nil {
			e = f.change(i, f.applied[i]+1, e)
		}
		if e.cause.sequence > f.applied[e.cause.stream] {
			if f.waits {
				f.waited++
				f.longest = max(f.longest, stream.last-f.applied[i])
				return
			}
			f.orphans++
		}
		f.apply(e)
		f.applied[i]++
	}
}

func (f *streamFollower) apply(e modelEvent) {
	if f.numbers[e.account]++; f.numbers[e.account] != e.number {
		f.reordered++
		f.numbers[e.account] = e.number
	}
	if f.usage[e.account] += e.delta; f.usage[e.account] < 0 || f.usage[e.account] > modelQuota {
		f.overQuota++
	}
	state := &f.states[e.account]
	f.digest -= mix(*state ^ uint64(e.account))
	*state = mix(*state + uint64(e.number)<<8 + uint64(uint8(e.delta)))
	f.digest += mix(*state ^ uint64(e.account))
	if f.deliver != nil {
		f.deliver(e)
	}
}

// followTo applies events of all streams up to a vector, in a random order of streams and chunks.
// It returns false when each stream waits for a cause after the vector: then the vector is not
// closed.
func (f *streamFollower) followTo(v vector, random *rand.Rand) bool {
	for f.applied != v {
		before := f.applied
		for _, i := range random.Perm(modelStreams) {
			f.follow(i, min(v[i], f.applied[i]+uint64(random.IntN(5000))+1))
		}
		if f.applied == before {
			return false
		}
	}
	return true
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
	require.True(t, f.followTo(f.log.ends(), f.log.random), "every stream waits for another")
}

// unclosed returns the number of events among the last ones of each stream up to a vector whose
// cause is after the vector.
func (l *streamLog) unclosed(v vector) (n int) {
	for i := range v {
		for sequence := v[i]; sequence > 0 && sequence+256 > v[i]; sequence-- {
			if cause := l.streams[i].events[sequence%modelWindow].cause; cause.sequence > v[cause.stream] {
				n++
			}
		}
	}
	return n
}

// streamReaders are the readers of the log: a follower, which is a control plane, a reader of the
// states at vectors that the follower has passed, and a subscription.
type streamReaders struct {
	follower, reader, subscription *streamFollower

	rounds   int
	passed   vector // vector that the follower had passed when the reader was last started
	digest   uint64 // digest of the follower there
	reads    int
	stored   streamFollower // the subscription when it stored its vector
	restarts int

	delivered        [modelAccounts]uint32 // number of the last event of each account that was delivered
	repeated, missed int                   // events that the subscription delivered again, or skipped
}

func newStreamReaders(l *streamLog) *streamReaders {
	r := &streamReaders{follower: &streamFollower{log: l, waits: true}, reader: &streamFollower{log: l, waits: true}}
	r.subscription = &streamFollower{log: l, waits: true, deliver: func(e modelEvent) {
		switch last := &r.delivered[e.account]; {
		case e.number == *last+1:
			*last++
		case e.number <= *last:
			r.repeated++
		default:
			r.missed++
		}
	}}
	r.stored = *r.subscription
	return r
}

// round lets all readers read.
func (r *streamReaders) round(t *testing.T, random *rand.Rand) {
	for _, f := range []*streamFollower{r.follower, r.subscription} {
		before := f.applied
		for i, at := range random.Perm(modelStreams) {
			upTo := f.log.streams[at].last // the first stream is read to its end
			if i > 0 {
				upTo = min(upTo, f.applied[at]+uint64(random.IntN(2000)))
			}
			f.follow(at, upTo)
		}
		if f.lag() > modelWindow/4 {
			f.catchUp(t)
		}
		for i := range before {
			require.GreaterOrEqual(t, f.applied[i], before[i])
		}
	}
	if r.rounds++; r.rounds%20 != 0 {
		return
	}
	require.True(t, r.reader.followTo(r.passed, random), "the follower has passed a vector that is not closed")
	require.Equal(t, r.digest, r.reader.digest, "the states of all accounts at one vector differ between two readers")
	r.passed, r.digest = r.follower.applied, r.follower.digest
	require.Zero(t, r.follower.log.unclosed(r.passed))
	r.reads++
	if r.rounds%60 == 0 && random.IntN(2) == 0 { // crashes, and begins again at the stored vector
		*r.subscription = r.stored
		r.restarts++
	} else if r.rounds%60 == 0 {
		r.stored = *r.subscription
	}
	if r.subscription.log.streams[0].last > r.stored.applied[0]+modelWindow/3 {
		r.stored = *r.subscription
	}
}

// plantedRun returns a follower that has read a log of 150,000 events. plant changes the follower
// before it reads; round is called after each 1,000 events. stuck says that the follower could not
// reach a closed vector.
func plantedRun(seed uint64, plant, round func(*streamFollower)) (f *streamFollower, stuck bool) {
	f = &streamFollower{log: newStreamLog(rand.New(rand.NewPCG(seed, 1))), waits: true}
	plant(f)
	for f.log.events < 150_000 {
		before := f.log.ends() // a closed vector: nothing is appended meanwhile
		for range 1000 {
			f.log.step()
		}
		if before[plantedStream] > plantedEnd && !f.followTo(before, f.log.random) {
			return f, true
		}
		round(f)
	}
	return f, false
}

// Stream and sequences of the events that a follower reads in another way.
const plantedStream, plantedBegin, plantedEnd = 3, 1000, 1200

// planted makes the follower read other events.
func (f *streamFollower) planted(other func(sequence uint64) uint64) {
	f.change = func(stream int, sequence uint64, e modelEvent) modelEvent {
		if stream == plantedStream && sequence >= plantedBegin && sequence < plantedEnd {
			return f.log.streams[stream].events[other(sequence)]
		}
		return e
	}
}

// TestViolationsOfStreamsAreFound plants violations of the rules of a log of several streams, each
// of which the checks of the model must find.
func TestViolationsOfStreamsAreFound(t *testing.T) {
	seed := testutil.Random(t).Uint64()
	nothing := func(*streamFollower) {}
	f, stuck := plantedRun(seed, nothing, nothing)
	require.False(t, stuck)
	require.Zero(t, f.violations, "nothing is planted")

	f, stuck = plantedRun(seed, func(f *streamFollower) {
		f.planted(func(sequence uint64) uint64 { return plantedEnd - 1 - (sequence - plantedBegin) })
	}, nothing)
	require.True(t, stuck || f.reordered > 0, "events are read backward")

	f, stuck = plantedRun(seed, func(f *streamFollower) {
		f.planted(func(uint64) uint64 { return plantedBegin })
	}, nothing)
	require.True(t, stuck || f.reordered > 0, "an event is repeated, and others are missing")

	vectors := 0
	f, _ = plantedRun(seed, func(f *streamFollower) { f.waits = false }, func(f *streamFollower) {
		v := f.applied
		v[5] = f.log.streams[5].last
		vectors += min(1, f.log.unclosed(v))
	})
	require.Positive(t, f.orphans, "events are applied before their causes")
	require.Positive(t, vectors, "one stream is read further than the others")

	f, _ = plantedRun(seed, func(f *streamFollower) {
		f.log.used = func(account int32) int8 { return f.usage[account] }
	}, nothing)
	require.Positive(t, f.overQuota, "quotas are decided on a follower that is behind")

	vectors = 0
	_, _ = plantedRun(seed, nothing, func(f *streamFollower) {
		var v vector
		for i := modelStreams - 1; i >= 0; i-- {
			v[i] = f.log.streams[i].last
			for range 50 {
				f.log.step()
			}
		}
		vectors += min(1, f.log.unclosed(v))
	})
	require.Positive(t, vectors, "the ends of the streams are read one after another, while events are appended")
}

// TestMovesKeepTheOrderOfAnAccount checks that a follower that reads the new stream of an account
// first waits for the move, and that it would apply the account's events out of order if the first
// event in the new stream did not state the move as its cause.
func TestMovesKeepTheOrderOfAnAccount(t *testing.T) {
	for _, stated := range []bool{true, false} {
		l := newStreamLog(rand.New(rand.NewPCG(1, 2)))
		from, to := l.home[1], l.home[1]%(modelStreams-1)+1
		l.append(modelEvent{account: 1, delta: 1})
		l.joined[1] = l.append(modelEvent{account: 1, moved: true})
		l.home[1] = to
		l.append(modelEvent{account: 1, delta: 1})
		f := &streamFollower{log: l, waits: true}
		if !stated {
			f.change = func(_ int, _ uint64, e modelEvent) modelEvent {
				e.cause = streamPosition{}
				return e
			}
		}
		for range 2 {
			f.follow(int(to), l.streams[to].last)
			f.follow(int(from), l.streams[from].last)
		}
		require.Equal(t, l.ends(), f.applied)
		require.Equal(t, stated, f.reordered == 0)
	}
}
