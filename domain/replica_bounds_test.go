package domain_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// replicas returns the events of a READY deployment with min 1 and max 3 that has n replicas and desires
// as many.
func replicas(n int) []domain.Event[domain.Deployment] {
	spec := domain.DeploymentSpec{BaseModel: "accounts/a/models/m", MinReplicaCount: 1, MaxReplicaCount: ptr(3),
		MaxWithRevocableReplicaCount: 5}
	events := events[domain.Deployment](domain.DeploymentCreated{DeploymentSpec: spec, Time: noon},
		domain.DeploymentScaled{Replicas: n, Time: noon})
	for i := range n {
		events = also(events, domain.ReplicaPlaced{ID: fmt.Sprint("r", i+1), Node: "n1", Generation: 1})
	}
	return events
}

// TestReplicasGiveWayAboveABound checks that a replica gives way only while its deployment has more
// replicas than the bound.
func TestReplicasGiveWayAboveABound(t *testing.T) {
	gaveWay := domain.ReplicaRemoved{ID: "r1", Reason: "gave way", Time: noon}
	remove := func(above domain.ReplicaBound) domain.RemoveReplica {
		return domain.RemoveReplica{ID: "r1", Reason: "gave way", Above: above}
	}
	decide(t, domain.Deployments, []decision[domain.Deployment]{
		{name: "above the minimum", given: replicas(2), when: remove(domain.AboveMinimum), then: gaveWay},
		{name: "at the minimum", given: replicas(1), when: remove(domain.AboveMinimum), fault: "STALE_PLAN"},
		{name: "above the maximum", given: replicas(4), when: remove(domain.AboveMaximum), then: gaveWay},
		{name: "at the maximum", given: replicas(3), when: remove(domain.AboveMaximum), fault: "STALE_PLAN"},
		{name: "without a bound", given: replicas(1), when: remove(""), then: gaveWay},
		{name: "scaled to zero meanwhile", given: also(replicas(1), domain.DeploymentScaled{Time: noon}),
			when: remove(domain.AboveMinimum), then: gaveWay},
	})
}

// TestReplicaShortage checks since when a deployment lacks replicas.
func TestReplicaShortage(t *testing.T) {
	at := func(minutes int) time.Time { return *later(time.Duration(minutes) * time.Minute) }
	removed := func(id string, minutes int) domain.Event[domain.Deployment] {
		return domain.ReplicaRemoved{ID: id, Time: at(minutes)}
	}
	type E = domain.Event[domain.Deployment]
	type S = domain.ReplicaShortage
	for name, c := range map[string]struct {
		events []E
		want   domain.ReplicaShortage
	}{
		"new":               {replicas(1)[:1], S{Minimum: noon, Desired: noon}},
		"complete":          {replicas(2), S{}},
		"above the minimum": {also(replicas(2), removed("r2", 1)), S{Desired: at(1)}},
		"below the minimum": {also(replicas(2), removed("r2", 1), removed("r1", 2)),
			S{Minimum: at(2), Desired: at(1)}},
		"placed again": {also(replicas(1), removed("r1", 1), domain.ReplicaPlaced{ID: "r2", Node: "n1", Generation: 1}),
			S{}},
		"scaled up": {also(replicas(1), domain.DeploymentScaled{Replicas: 2, Time: at(3)}), S{Desired: at(3)}},
		"scaled down": {also(replicas(2), removed("r2", 1),
			domain.DeploymentScaled{Replicas: 1, Time: at(3)}), S{}},
		"failed":   {also(replicas(1)[:1], domain.DeploymentFailed{Time: at(4)}), S{}},
		"deleting": {also(replicas(1), removed("r1", 1), domain.DeploymentDeleting{Time: at(4)}), S{}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, fold(t, domain.Deployments, c.events...).Short)
		})
	}
}
