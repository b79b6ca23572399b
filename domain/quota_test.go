package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestQuota(t *testing.T) {
	type D = decision[domain.Quota]
	f := events[domain.Quota]
	decide(t, domain.Quotas, []D{
		{name: "set", when: domain.SetQuota{MaxValue: 3}, then: domain.QuotaSet{MaxValue: 3}},
		{name: "set to 0", when: domain.SetQuota{}, then: domain.QuotaSet{}},
		{name: "set to the same", given: f(domain.QuotaSet{MaxValue: 3}), when: domain.SetQuota{MaxValue: 3}},
		{name: "set to another value", given: f(domain.QuotaSet{MaxValue: 3}), when: domain.SetQuota{MaxValue: 2},
			then: domain.QuotaSet{MaxValue: 2}},
		{name: "set below zero", when: domain.SetQuota{MaxValue: -1}, fault: "INVALID_FIELDS",
			says: "maxValue: must be from 0"},
		{name: "set too high", when: domain.SetQuota{MaxValue: domain.MaxQuota + 1}, fault: "INVALID_FIELDS",
			says: "maxValue"},
		{name: "lift", given: f(domain.QuotaSet{MaxValue: 3}), when: domain.LiftQuota{}, then: domain.QuotaLifted{}},
		{name: "lift a quota that is not set", when: domain.LiftQuota{}},
	})
}

func TestUsage(t *testing.T) {
	deployment := func(state string, minimum, desired int) domain.Deployment {
		return domain.Deployment{State: state, DesiredReplicas: desired,
			DeploymentSpec: domain.DeploymentSpec{AcceleratorCount: 2, MinReplicaCount: minimum}}
	}
	job := func(state string, nodes int) domain.JobLife {
		return domain.JobLife{State: state, Nodes: make([]domain.Name, nodes),
			Resources: domain.Resources{Accelerators: map[string]int{"X": 4}}}
	}
	files := func(prefix string, size int64) domain.Files {
		return domain.Files{Prefix: prefix, Sizes: map[string]int64{"a": size, "b": 1}}
	}
	for _, c := range []struct {
		name string
		of   interface{ Usage() domain.Usage }
		want domain.Usage
	}{
		{"no deployment", domain.Deployment{}, domain.Usage{}},
		{"a CREATING deployment", deployment(domain.DeploymentCreatingState, 1, 1),
			domain.Usage{Accelerators: 2, Deployments: 1}},
		{"a deployment that was scaled up", deployment(domain.DeploymentReadyState, 1, 3),
			domain.Usage{Accelerators: 6, Deployments: 1}},
		{"a deployment below its minimum", deployment(domain.DeploymentUpdatingState, 4, 3),
			domain.Usage{Accelerators: 8, Deployments: 1}},
		{"a deployment scaled to zero", deployment(domain.DeploymentReadyState, 0, 0), domain.Usage{Deployments: 1}},
		{"one that failed", deployment(domain.DeploymentFailedState, 1, 0), domain.Usage{Deployments: 1}},
		{"one that is being deleted", deployment(domain.DeploymentDeletingState, 1, 0), domain.Usage{}},
		{"a deleted deployment", deployment(domain.DeploymentDeletedState, 1, 0), domain.Usage{}},
		{"no job", domain.JobLife{}, domain.Usage{}},
		{"a pending job", job(domain.JobPendingState, 0), domain.Usage{Jobs: 1}},
		{"a job on two nodes", job(domain.JobRunningState, 2), domain.Usage{Jobs: 1, Accelerators: 8}},
		{"a paused job", job(domain.JobPausedState, 0), domain.Usage{Jobs: 1}},
		{"a job that is being cancelled", job(domain.JobCancellingState, 1), domain.Usage{Jobs: 1, Accelerators: 4}},
		{"one that failed", job(domain.JobFailedState, 0), domain.Usage{}},
		{"one that is being deleted", job(domain.JobDeletingState, 0), domain.Usage{}},
		{"a dataset without rows", domain.Dataset{}, domain.Usage{}},
		{"a dataset with rows", domain.Dataset{Files: files("x/", 9)}, domain.Usage{StorageBytes: 10}},
		{"a model and its copies",
			domain.Model{Files: files("x/", 9),
				Copies: map[string]domain.ModelCopy{"BF16": {Files: files("y/", 4)}, "FP16": {}}}, domain.Usage{StorageBytes: 15}},
		{"an evaluator and its builds",
			domain.Evaluator{Files: files("x/", 9), Built: []domain.Build{{Files: files("y/", 1)}, {Files: files("x/", 9)}}},
			domain.Usage{StorageBytes: 12}},
	} {
		require.Equal(t, c.want, c.of.Usage(), c.name)
	}
	sum := domain.Usage{Accelerators: 1, Jobs: 2, Deployments: 3,
		StorageBytes: 4}.Plus(domain.Usage{Accelerators: 1, StorageBytes: 1})
	require.Equal(t, domain.Usage{Accelerators: 2, Jobs: 2, Deployments: 2, StorageBytes: 5},
		sum.Minus(domain.Usage{Deployments: 1}))
	require.Equal(t, []int64{2, 3, 2, 0, 5}, []int64{sum.Of(domain.QuotaAccelerators), sum.Of(domain.QuotaDeployments),
		sum.Of(domain.QuotaJobs), sum.Of(domain.QuotaRequestsPerMinute), sum.Of(domain.QuotaStorageBytes)})
}
