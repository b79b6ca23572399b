package schedulers_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

// TestShrunkNode checks that a node whose devices fail keeps the work that its other devices hold.
// If the agent does not report the affected work in time, only the newest allocation moves, and
// this does not count as a failure.
func TestShrunkNode(t *testing.T) {
	s := begin(t, node("n1", "", 40, map[string]int{l4: 3}), deployment("d1", 2, 2, onL4))
	s.runPlans()
	s.pending(1, "j1")
	s.runPlans()
	require.True(t, s.jobLife("j1").Active())
	s.advance(schedulers.ShrinkWithin)
	s.given(node("n1", "", 40, map[string]int{l4: 2}))
	require.Empty(t, s.plan(schedulers.Nodes{}).Steps, "the agent may report the work on the failed device")
	s.advance(schedulers.ShrinkWithin)
	s.heartbeat("n1")
	s.execute(schedulers.Nodes{})
	require.Equal(t, domain.JobReQueueingState, s.jobLife("j1").State)
	require.Zero(t, s.jobLife("j1").Failures, "a failed device is no failure of the job")
	require.Equal(t, []string{"r1", "r2"}, s.placed("d1"))
	require.Empty(t, s.plan(schedulers.Nodes{}).Steps, "the allocation that is left is about to be released")
	s.runPlans()
	require.False(t, s.jobLife("j1").Active(), "nothing new is placed on the node")

	s.comment("another device fails: a replica is moved")
	s.given(node("n1", "", 40, map[string]int{l4: 1}))
	s.advance(schedulers.ShrinkWithin)
	s.heartbeat("n1")
	s.execute(schedulers.Nodes{})
	require.Equal(t, []string{"r1"}, s.placed("d1"))

	s.comment("the devices are healthy again")
	s.given(node("n1", "", 40, map[string]int{l4: 3}))
	s.runPlans()
	require.True(t, s.jobLife("j1").Active())
	require.Len(t, s.placed("d1"), 2)
	s.compare("nodes_shrunk")
}

// heartbeat records a heartbeat of a node.
func (s *harness) heartbeat(id string) { s.world.Live().Heartbeat(nodeName(id), s.now) }
