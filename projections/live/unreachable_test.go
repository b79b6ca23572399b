package live

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestUnreachable checks that a mark of a replica or its node lasts until a heartbeat lists the
// replica, and that further marks of a dead node do not change the status.
func TestUnreachable(t *testing.T) {
	const name, node = domain.Name("accounts/a/deployments/d"), domain.Name("accounts/system/nodes/n1")
	at := func(seconds int) time.Time { return time.Unix(int64(seconds), 0) }
	d := &domain.Deployment{Replicas: map[string]domain.Replica{"r1": {ID: "r1", Node: node}, "r2": {ID: "r2", Node: node},
		"r3": {ID: "r3", Node: "accounts/system/nodes/n2"}}}
	s := NewStatus(at(0))
	unreachable := func() []string { return slices.Sorted(maps.Keys(s.View().Unreachable(name, d))) }
	require.Empty(t, unreachable())
	require.Empty(t, View{}.Unreachable(name, d))
	heartbeat := func(now time.Time) {
		s.Heartbeat(node, now)
		s.Load(name, "r1", ReplicaLoad{Time: now})
		s.Load(name, "r2", ReplicaLoad{Time: now})
	}
	heartbeat(at(1))
	s.MarkReplica(name, "r1", at(2))
	require.Equal(t, []string{"r1"}, unreachable())
	s.MarkNode(node, at(3))
	require.Equal(t, []string{"r1", "r2"}, unreachable())
	version := s.View().Version()
	s.MarkNode(node, at(4))
	s.MarkReplica(name, "r1", at(4))
	require.Equal(t, version, s.View().Version())
	heartbeat(at(5))
	require.Empty(t, unreachable())
	s.MarkNode(node, at(6))
	require.Equal(t, []string{"r1", "r2"}, unreachable(), "a heartbeat has ended the mark of 3 s")
	s.MarkNode(node, at(20))
	require.Equal(t, at(20), s.View().Unreachable(name, d)["r2"])
	s.MarkReplica(name, "r3", at(60))
	require.Equal(t, []string{"r3"}, unreachable(), "the mark of the node has expired")
}
