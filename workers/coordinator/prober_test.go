package coordinator_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/engines/simulated"
)

// TestKilledNodeIsUnreachable kills one of two agents, and checks that its replica is unreachable
// without a request and long before the node is lost, that the other replica stays reachable, and that
// nothing is recorded.
func TestKilledNodeIsUnreachable(t *testing.T) {
	c := startWithInputs(t)
	kill := c.child("n1", t.TempDir(), 1)
	c.stops["n2"] = c.agent("n2", simulated.New(simulated.Options{}))
	killed := c.serving(c.deploy("n1").ID)
	c.serving(c.placeReplica("n2").ID)
	unreachable := func() []string {
		row, _ := c.world.View().Deployments.Get(deploymentName)
		return slices.Collect(maps.Keys(c.world.Live().View().Unreachable(deploymentName, &row.State)))
	}
	c.receivesAll()
	require.Empty(t, unreachable())
	kill()
	position, began := c.world.View().Position, time.Now()
	require.Eventually(t, func() bool { return slices.Equal(unreachable(), []string{killed.ID}) }, waitTimeout,
		time.Millisecond)
	t.Logf("the replica is unreachable %v after its agent was killed", time.Since(began))
	require.Equal(t, position, c.world.View().Position)
}
