package routing

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"anneal/api/request"
	"anneal/api/routing/balance"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/live"
)

// TestCandidates checks what the gateway knows of replicas from their last heartbeats, also from
// agents of earlier versions.
func TestCandidates(t *testing.T) {
	start := time.Unix(1000, 0)
	now := start.Add(time.Minute)
	world := projections.NewWorld()
	unknown := live.EngineLoad{PendingTokens: -1, Running: -1, Waiting: -1, CacheTokens: -1, CacheUsed: -1}
	for id, load := range map[string]live.ReplicaLoad{
		"earlier": {Active: 2, Queued: 1, Slots: 4, Engine: unknown},
		"full": {Slots: 8, Engine: live.EngineLoad{PendingTokens: 700, CacheTokens: 10_000, Age: time.Second},
			AddonLoadTime: 40 * time.Millisecond, Unloaded: map[string]bool{"x": false, "y": true}},
		"new": {Engine: unknown, Unloaded: map[string]bool{"x": false}},
	} {
		load.Time = now.Add(-2 * time.Second)
		world.Live().Load(deployment, id, load)
	}
	c := &request.Call{Core: &request.Core{World: world, Busy: request.NewCounters()}}
	list := func(addon string) []balance.Candidate {
		replicas := []domain.Replica{{ID: "earlier"}, {ID: "full"}, {ID: "new"}, {ID: "silent"}}
		return candidates(c, Request{Deployment: deployment, Addon: addon}, replicas, start, time.Minute)
	}
	silent := balance.Report{PendingTokens: -1, Age: 2 * time.Second}
	assert.Equal(t, []balance.Candidate{
		{ID: "earlier", Requests: 3, Slots: 4, Report: silent, ReportTime: 58 * time.Second},
		{ID: "full", Slots: 8, AddonLoad: 40 * time.Millisecond, ReportTime: 58 * time.Second,
			Report: balance.Report{PendingTokens: 700, CacheBlocks: 19, Age: 3 * time.Second}},
		{ID: "new", AddonLoad: assumedAddonLoad, Report: silent, ReportTime: 58 * time.Second},
		{ID: "silent"},
	}, list("x"))
	assert.True(t, list("y")[1].AddonQueued)
	assert.Zero(t, list("")[1].AddonLoad)
}
