package balance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAddonsThatAreNotResident checks the delay by the load of an addon: twice the load time, once
// if requests wait for the load, and the rest of a load that this or another gateway has begun.
func TestAddonsThatAreNotResident(t *testing.T) {
	const load = 300 * time.Millisecond
	b := New(nil)
	loadOf := func(now time.Duration, c Candidate) int64 {
		choice, ok := b.Choose(now, Query{Addon: "x", Candidates: []Candidate{c}})
		require.True(t, ok)
		return choice.Load
	}
	cold := Candidate{ID: "a", AddonLoad: load}
	assert.InDelta(t, 2*1680, loadOf(0, cold), 5)
	assert.InDelta(t, 1680, loadOf(0, Candidate{ID: "a", AddonLoad: load, AddonQueued: true}), 5)
	assert.Zero(t, loadOf(0, Candidate{ID: "a"}))

	choice, _ := b.Choose(0, Query{Addon: "x", Candidates: []Candidate{cold}})
	b.Send(0, "a", Prompt{}, choice)
	assert.InDelta(t, 840, loadOf(load/2, cold), 5)
	assert.Zero(t, loadOf(load, cold))
	assert.Zero(t, pendingOf(t, b, 0), "a load does not delay other requests")
	assert.InDelta(t, 2*1680, loadOf(load+addonSendKept, cold), 5, "reports count")

	b.Record(time.Minute, SentPrompt{Replica: "a", Addon: "x", Age: load / 3})
	assert.InDelta(t, 1120, loadOf(time.Minute, cold), 5)
}

// TestRequestsOfAnAddonFollowIt checks that requests go to the replica that has the addon, or is
// loading it, until another one would answer sooner.
func TestRequestsOfAnAddonFollowIt(t *testing.T) {
	b := New(nil)
	candidates := replicas("a", "b")
	for i := range candidates {
		candidates[i].AddonLoad = 300 * time.Millisecond
	}
	var got []int
	for range 6 {
		choice, _ := b.Choose(0, Query{Addon: "x", Candidates: candidates, Prompt: prompt(500)})
		b.Send(0, candidates[choice.Candidate].ID, prompt(500), choice)
		got = append(got, choice.Candidate)
	}
	assert.Equal(t, []int{0, 0, 0, 0, 1, 1}, got, "each adds 500 tokens, and a load on b 1,680 more")
}
