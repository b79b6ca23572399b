package routing

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/routing/balance"
)

func gateway(secret string) *Router {
	return NewRouter(nil, nil, prometheus.NewRegistry(), []byte(secret))
}

// send sends a prompt to a replica through a gateway.
func send(r *Router, replica, prompt string, clock func() time.Time) {
	b, now := r.balancers.forDeployment(rowOf(1, 2, "r1", "r2"), clock)
	p := r.balancers.hasher.Text("", []byte(prompt))
	choice, _ := b.Choose(now(), balance.Query{Prompt: p, Candidates: []balance.Candidate{{ID: replica}}})
	b.Send(now(), replica, p, choice)
}

// choose returns the choice of a gateway for a prompt.
func choose(r *Router, prompt string, clock func() time.Time) balance.Choice {
	b, now := r.balancers.forDeployment(rowOf(1, 2, "r1", "r2"), clock)
	choice, _ := b.Choose(now(), balance.Query{Prompt: r.balancers.hasher.Text("", []byte(prompt)),
		Candidates: []balance.Candidate{{ID: "r1"}, {ID: "r2"}}})
	return choice
}

// TestGatewaysLearnOfOneAnother checks that a gateway knows the prompts that another one sent:
// which replica has them cached, and which is busy.
func TestGatewaysLearnOfOneAnother(t *testing.T) {
	now := time.Unix(1000, 0)
	clock := func() time.Time { return now }
	a, b := gateway("pepper"), gateway("pepper")
	long, other := strings.Repeat("word ", 20_000), strings.Repeat("text ", 1000)
	send(a, "r2", long, clock)
	assert.Empty(t, a.TakeNotes(now), "the first call enables notes")
	send(a, "r2", long, clock)
	now = now.Add(30 * time.Millisecond)
	taken := a.TakeNotes(now)
	require.Len(t, taken, 1)
	assert.Equal(t, 30*time.Millisecond, taken[0].Age)
	assert.Empty(t, a.TakeNotes(now))
	messages := EncodeNotes(taken)
	require.Len(t, messages, 1)
	received, err := DecodeNotes(messages[0])
	require.NoError(t, err)
	require.Len(t, received, 1)
	taken[0].sent = time.Time{}
	assert.Equal(t, taken[0], received[0])

	require.Zero(t, choose(b, long, clock).Cached)
	b.AddNote(rowOf(1, 2, "r1", "r2"), received[0], clock)
	now = now.Add(time.Minute) // the prompt is processed
	found := choose(b, long, clock)
	assert.Equal(t, 1, found.Candidate)
	assert.Positive(t, found.Cached)

	send(a, "r1", other, clock)
	busy, err := DecodeNotes(EncodeNotes(a.TakeNotes(now))[0])
	require.NoError(t, err)
	b.AddNote(rowOf(1, 2, "r1", "r2"), busy[0], clock)
	assert.Equal(t, 1, choose(b, "hello", clock).Candidate, "r1 is busy")
}

// TestNotesAreIgnored enumerates the notes that change nothing, and the messages that are refused.
func TestNotesAreIgnored(t *testing.T) {
	clock := func() time.Time { return time.Unix(1000, 0) }
	r := gateway("pepper")
	for _, n := range []Note{
		{Deployment: deployment, Created: 7, SentPrompt: balance.SentPrompt{Replica: "r1", Uncached: 100_000}},
		{Deployment: deployment, Created: 1, SentPrompt: balance.SentPrompt{Replica: "r9", Uncached: 100_000}},
	} {
		r.AddNote(rowOf(1, 2, "r1", "r2"), n, clock)
		choice := choose(r, "hello", clock)
		assert.Zero(t, choice.Pending)
		assert.Zero(t, choice.Candidate)
	}
	for _, message := range []string{"", "{}", `[{"uncached": -1}]`, `[{"age": -1}]`, `[{"blocks": "AAAA"}]`} {
		_, err := DecodeNotes([]byte(message))
		assert.Error(t, err, message)
	}
	secret, other := gateway("a"), gateway("b")
	text := []byte(strings.Repeat("word ", 1000))
	assert.NotEqual(t, secret.balancers.hasher.Text("", text).Blocks, other.balancers.hasher.Text("", text).Blocks,
		"hashes depend on the secret")
}

// TestNotesAreBounded checks that notes that nobody takes, and long prompts, do not grow without
// bound.
func TestNotesAreBounded(t *testing.T) {
	clock := func() time.Time { return time.Unix(1000, 0) }
	r := gateway("pepper")
	r.TakeNotes(clock())
	for range maxNotes + 10 {
		send(r, "r1", "hello", clock)
	}
	assert.Len(t, r.TakeNotes(clock()), maxNotes)
	send(r, "r1", strings.Repeat("word ", 300_000), clock)
	messages := EncodeNotes(r.TakeNotes(clock()))
	require.Len(t, messages, 1)
	assert.Less(t, len(messages[0]), 4096)
	many := make([]Note, maxMessageNotes+1)
	assert.Len(t, EncodeNotes(many), 2)
}
