package balance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// chosen sends a request to the chosen replica.
func chosen(t *testing.T, b *Balancer, now time.Duration, candidates []Candidate) (*InFlight, Choice) {
	t.Helper()
	choice, ok := b.Choose(now, Query{Candidates: candidates})
	require.True(t, ok)
	return b.Send(now, candidates[choice.Candidate].ID, Prompt{}, choice), choice
}

// TestBreaker checks that a replica with consecutive failures gets no requests for a pause, then
// one, and that the outcome of that one closes the breaker or opens it for twice as long.
func TestBreaker(t *testing.T) {
	b, two, now := New(nil), replicas("a", "b"), time.Duration(0)
	for i := range breakerFailures {
		s, choice := chosen(t, b, now, two)
		require.Equal(t, "a", two[choice.Candidate].ID, "both have the same score")
		require.Equal(t, i == breakerFailures-1, s.Fail(now))
	}
	for pause := breakerPause; pause <= 8*breakerPause; pause *= 2 {
		_, choice := chosen(t, b, now+pause-1, two)
		require.Equal(t, "b", two[choice.Candidate].ID)
		require.False(t, choice.Probe)
		now += pause
		probe, choice := chosen(t, b, now, two)
		require.Equal(t, "a", two[choice.Candidate].ID)
		require.True(t, choice.Probe)
		_, choice = chosen(t, b, now, two)
		require.Equal(t, "b", two[choice.Candidate].ID, "one request tests the replica")
		require.True(t, probe.Fail(now))
	}
	now += maxBreakerPause
	probe, choice := chosen(t, b, now, two)
	require.True(t, choice.Probe)
	probe.Cancel(now)
	probe, choice = chosen(t, b, now, two)
	require.True(t, choice.Probe, "a canceled request has tested nothing")
	probe.FirstToken(now)
	for range breakerFailures - 1 {
		s, choice := chosen(t, b, now, two)
		require.Equal(t, "a", two[choice.Candidate].ID)
		require.False(t, choice.Probe)
		require.False(t, s.Fail(now))
	}
	s, _ := chosen(t, b, now, two)
	s.FirstToken(now)
	assert.False(t, s.Fail(now), "a failure after the first token does not count")
	s, _ = chosen(t, b, now, two)
	assert.False(t, s.Fail(now), "the failures were not consecutive")
}

// TestBreakersOfAllReplicas checks that requests go on if the breakers of all replicas are open,
// for example because of requests that crash any replica, and that a session does not override a
// breaker.
func TestBreakersOfAllReplicas(t *testing.T) {
	b, two := New(nil), replicas("a", "b")
	for range 2 * breakerFailures {
		s, choice := chosen(t, b, 0, two)
		require.False(t, choice.Forced)
		s.Fail(0)
	}
	s, choice := chosen(t, b, 0, two)
	require.True(t, choice.Forced)
	s.FirstToken(0)
	choice, _ = b.Choose(0, Query{Candidates: two, Session: "b"})
	require.Equal(t, "a", two[choice.Candidate].ID)
	require.Equal(t, ReasonTokens, choice.Reason)
	require.False(t, choice.Forced)
}

// TestFailuresOfOldRequests checks that requests that were in progress when a breaker opened do not
// make its pause longer.
func TestFailuresOfOldRequests(t *testing.T) {
	b, one := New(nil), replicas("a")
	var sent []*InFlight
	for range 3 * breakerFailures {
		s, _ := chosen(t, b, 0, one)
		sent = append(sent, s)
	}
	opened := 0
	for _, s := range sent {
		if s.Fail(time.Second) {
			opened++
		}
	}
	require.Equal(t, 1, opened)
	_, choice := chosen(t, b, time.Second+breakerPause, one)
	require.True(t, choice.Probe)
}

// TestHungReplica checks that requests whose clients leave open the breaker of a replica that
// answers nothing, but not that of a slow replica.
func TestHungReplica(t *testing.T) {
	prompt, one := Prompt{Tokens: 100}, replicas("a")
	cancel := func(b *Balancer, now, patience time.Duration) bool {
		choice, ok := b.Choose(now, Query{Prompt: prompt, Candidates: one})
		require.True(t, ok)
		return b.Send(now, "a", prompt, choice).Cancel(now + patience)
	}
	for name, test := range map[string]struct {
		patience time.Duration
		answers  bool // the replica answers another request meanwhile
		opens    bool
	}{
		"hung":             {time.Minute, false, true},
		"impatient client": {time.Second, false, false},
		"slow":             {time.Minute, true, false},
	} {
		b, opened := New(nil), false
		for i := range breakerFailures {
			now := time.Duration(1+i) * time.Hour
			if test.answers {
				choice, _ := b.Choose(now, Query{Prompt: prompt, Candidates: one})
				s := b.Send(now, "a", prompt, choice)
				defer s.FirstToken(now)
				other, _ := b.Choose(now, Query{Prompt: prompt, Candidates: one})
				b.Send(now, "a", prompt, other).FirstToken(now + time.Second)
			}
			opened = cancel(b, now, test.patience) || opened
		}
		require.Equal(t, test.opens, opened, name)
	}
}
