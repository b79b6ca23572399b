package balance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pendingOf returns the predicted pending tokens of the only replica.
func pendingOf(t *testing.T, b *Balancer, now time.Duration) int64 {
	t.Helper()
	choice, ok := b.Choose(now, Query{Candidates: replicas("a")})
	require.True(t, ok)
	return choice.Pending
}

// TestReportReplacesPrediction checks that a report counts from its own time, also when the replica
// was idle before it.
func TestReportReplacesPrediction(t *testing.T) {
	b := New(nil)
	assert.Zero(t, pendingOf(t, b, 0))
	b.Report(time.Hour, "a", Report{PendingTokens: 5600})
	assert.InDelta(t, 5600, pendingOf(t, b, time.Hour), 10)
	b.Report(time.Hour, "a", Report{PendingTokens: 0})
	assert.Zero(t, pendingOf(t, b, time.Hour))
}

// TestOverlappingRequestsLeaveNothingPending checks that a replica has no pending tokens once all
// requests have their first token, however late that was and in whichever order. Requests without a
// prompt, such as transcriptions, have their first token when they end.
func TestOverlappingRequestsLeaveNothingPending(t *testing.T) {
	one := replicas("a")
	for name, p := range map[string]Prompt{"without a prompt": {}, "short": prompt(10)} {
		t.Run(name, func(t *testing.T) {
			b := New(nil)
			first, _ := send(t, b, 0, p, one)
			second, _ := send(t, b, 30*time.Second, p, one)
			first.FirstToken(60 * time.Second)
			assert.InDelta(t, 0, pendingOf(t, b, 60*time.Second), 20)
			third, _ := send(t, b, 70*time.Second, p, one)
			third.FirstToken(80 * time.Second) // before the second
			assert.InDelta(t, 0, pendingOf(t, b, 80*time.Second), 20)
			second.FirstToken(90 * time.Second)
			assert.InDelta(t, 0, pendingOf(t, b, 90*time.Second), 20)
		})
	}
}

// TestOvertakenRequestsStayPending checks that a request that gets its first token before an
// earlier one does not remove the earlier one's tokens.
func TestOvertakenRequestsStayPending(t *testing.T) {
	b, one := New(nil), replicas("a")
	long, _ := send(t, b, 0, prompt(56_000), one) // 10 s
	short, _ := send(t, b, 0, prompt(10), one)
	short.FirstToken(time.Second)
	assert.InDelta(t, 9*5600, pendingOf(t, b, time.Second), 50)
	long.FirstToken(20 * time.Second)
	assert.Zero(t, pendingOf(t, b, 20*time.Second))
}

// TestFailedRequestsRemoveOnlyWhatIsLeft checks that a request that fails removes the tokens that
// the replica has not processed yet, and not the time that it took.
func TestFailedRequestsRemoveOnlyWhatIsLeft(t *testing.T) {
	b, one := New(nil), replicas("a")
	first, _ := send(t, b, 0, prompt(56_000), one) // 10 s
	send(t, b, 0, prompt(56_000), one)             // until 20 s
	first.Fail(9 * time.Second)
	assert.InDelta(t, 56_000, pendingOf(t, b, 9*time.Second), 50)
	second, _ := send(t, b, 9*time.Second, prompt(5600), one)
	second.Fail(9 * time.Second)
	assert.InDelta(t, 56_000, pendingOf(t, b, 9*time.Second), 50)
}

// TestSlotsDoNotMeasureTheRate checks that the estimated rate of a replica does not change with
// requests that waited for a slot, whose delay is no work on prompts.
func TestSlotsDoNotMeasureTheRate(t *testing.T) {
	b, now := New(nil), time.Duration(0)
	full := []Candidate{{ID: "a", Requests: 5, Slots: 4}}
	for _, took := range []time.Duration{time.Millisecond, time.Minute} {
		for range 100 {
			s, _ := send(t, b, now, prompt(10), full)
			now += took
			s.FirstToken(now)
		}
		assert.EqualValues(t, initialRate, b.typicalRate())
	}
}

// TestRequestsOfARemovedReplica checks that requests to a removed replica do not correct the state
// of a replica that was added later with the same ID.
func TestRequestsOfARemovedReplica(t *testing.T) {
	b, one := New(nil), replicas("a")
	p := prompt(56_000, 1, 2)
	first, _ := send(t, b, 0, p, one)
	second, _ := send(t, b, 0, p, one)
	b.Keep(nil)
	send(t, b, 0, prompt(56_000), one)
	before := pendingOf(t, b, 0)
	first.FirstToken(time.Minute)
	second.Fail(time.Minute)
	first.End(0)
	assert.Equal(t, before, pendingOf(t, b, 0))
	assert.Equal(t, initialBlocks, b.prefixes.lists[0].limit)
}

// TestReplicasThatDoNotReportCachedTokens checks that the assumed size of a cache does not shrink
// when a replica reports 0 cached tokens in each response, which is what engines do that do not
// count them.
func TestReplicasThatDoNotReportCachedTokens(t *testing.T) {
	b, one := New(nil), replicas("a")
	for range 100 {
		s, _ := send(t, b, 0, prompt(1024, 1, 2), one)
		s.End(0)
	}
	assert.Equal(t, initialBlocks, b.prefixes.lists[0].limit)
}
