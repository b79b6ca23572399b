package coordinator

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"anneal/engines"
	"anneal/projections/live"
	"anneal/workers/protocol"
)

// TestLoadOfEngines checks which load is recorded for agents that do not report that of their engine,
// and for reports with impossible numbers.
func TestLoadOfEngines(t *testing.T) {
	unknown := live.EngineLoad{PendingTokens: -1, Running: -1, Waiting: -1, CacheTokens: -1, CacheUsed: -1}
	assert.Equal(t, unknown, engineLoad(nil), "an earlier version of the agent")
	none := engines.NoLoad()
	assert.Equal(t, unknown, engineLoad(&none))
	assert.Equal(t, live.EngineLoad{PendingTokens: 1, Running: 2, Waiting: 3, CacheTokens: 4, CacheUsed: 5, Age: 6},
		engineLoad(&engines.ModelLoad{PendingTokens: 1, Running: 2, Waiting: 3, CacheTokens: 4, CacheUsed: 5, Age: 6}))
	assert.Equal(t, live.EngineLoad{PendingTokens: maxTokens, Running: -1, Waiting: -1, CacheTokens: maxTokens,
		CacheUsed: -1, Age: time.Minute},
		engineLoad(&engines.ModelLoad{PendingTokens: math.MaxInt64, Running: -5, Waiting: math.MinInt64,
			CacheTokens: math.MaxInt64, CacheUsed: -2, Age: math.MaxInt64}))
}

// TestUnloadedAddons checks that only loaded addons can be recorded as unloaded by the engine.
func TestUnloadedAddons(t *testing.T) {
	assert.Nil(t, unloadedAddons(protocol.Replica{Addons: []protocol.Addon{{ID: "a", State: protocol.AddonLoaded}}}))
	assert.Equal(t, map[string]bool{"b": false, "c": true}, unloadedAddons(protocol.Replica{Addons: []protocol.Addon{
		{ID: "a", State: protocol.AddonLoading, Residency: protocol.AddonEvicted},
		{ID: "b", State: protocol.AddonLoaded, Residency: protocol.AddonEvicted},
		{ID: "c", State: protocol.AddonLoaded, Residency: protocol.AddonQueued},
		{ID: "d", State: protocol.AddonFailed}}}))
}
