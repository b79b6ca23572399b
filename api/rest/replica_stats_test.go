package rest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/projections"
)

// TestReplicaStatsFollowEvents checks that replicaStats counts the replicas in each state after each
// event: pending, downloading, initializing, ready.
func TestReplicaStatsFollowEvents(t *testing.T) {
	two, node, now := 2, domain.NewName(domain.System, "nodes", "n1"), time.Unix(0, 0)
	row := projections.Row[domain.Deployment]{Name: domain.NewName("acme", "deployments", "d1")}
	placed := func(id string) domain.ReplicaPlaced { return domain.ReplicaPlaced{ID: id, Node: node, Generation: 1} }
	for _, step := range []struct {
		event domain.Event[domain.Deployment]
		want  [4]int
	}{
		{domain.DeploymentCreated{DeploymentSpec: domain.DeploymentSpec{MinReplicaCount: 2, MaxReplicaCount: &two},
			Time: now}, [4]int{2, 0, 0, 0}},
		{placed("r1"), [4]int{1, 1, 0, 0}},
		{domain.ReplicaAdvanced{ID: "r1", State: domain.ReplicaInitializing}, [4]int{1, 0, 1, 0}},
		{placed("r2"), [4]int{0, 1, 1, 0}},
		{domain.ReplicaAdvanced{ID: "r1", State: domain.ReplicaReady}, [4]int{0, 1, 0, 1}},
		{domain.ReplicaRemoved{ID: "r2", Failed: true, Time: now}, [4]int{1, 0, 0, 1}},
		{domain.ReplicaAbandoned{ID: "r3"}, [4]int{1, 0, 0, 1}},
		{placed("r4"), [4]int{0, 1, 0, 1}},
		{domain.ReplicaAdvanced{ID: "r4", State: domain.ReplicaReady}, [4]int{0, 0, 0, 2}},
		{domain.DeploymentBecameReady{Generation: 1, Time: now}, [4]int{0, 0, 0, 2}},
		{domain.DeploymentScaled{Replicas: 1, Time: now}, [4]int{0, 0, 0, 2}},
		{domain.ReplicaRemoved{ID: "r4", Time: now}, [4]int{0, 0, 0, 1}},
		{domain.DeploymentDeleting{Time: now}, [4]int{0, 0, 0, 1}},
		{domain.ReplicaRemoved{ID: "r1", Time: now}, [4]int{0, 0, 0, 0}},
		{domain.DeploymentUndeleted{Time: now}, [4]int{2, 0, 0, 0}},
	} {
		step.event.Evolve(&row.State)
		var shown Deployment
		renderDeployment(nil, &row, &shown)
		s := shown.ReplicaStats
		require.Equal(t, step.want, [4]int{s.PendingScheduling, s.DownloadingModel, s.Initializing, s.Ready}, "%T",
			step.event)
		require.Equal(t, len(row.State.Replicas), shown.ReplicaCount)
	}
}
