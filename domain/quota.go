package domain

import "time"

// A quota bounds what an account may have, or ask for, at one time. An account
// is unlimited in whatever has no quota. Its operator sets and lifts them.
//
//	(none) --SetQuota--> set --SetQuota--> set, to another value
//	set    --LiftQuota--> (none)
var Quotas = NewKind("quotas", map[string]Event[Quota]{
	"quota.set.v1":    QuotaSet{},
	"quota.lifted.v1": QuotaLifted{},
})

// The IDs of the quotas that every account has: nothing else is bounded.
const (
	QuotaAccelerators      = "accelerators"        // that live deployments want and jobs hold
	QuotaJobs              = "jobs"                // that have not ended, of all kinds
	QuotaDeployments       = "deployments"         // that are not deleted
	QuotaRequestsPerMinute = "requests-per-minute" // management and inference together
	QuotaStorageBytes      = "storage-bytes"       // of the files of datasets, models and evaluators
)

// QuotaIDs are the IDs in the order of their names.
var QuotaIDs = []string{QuotaAccelerators, QuotaDeployments, QuotaJobs, QuotaRequestsPerMinute, QuotaStorageBytes}

// MaxQuota is the largest value that a quota may have: a petabyte of storage.
const MaxQuota = 1_000_000_000_000_000

// Quota is the state of one quota.
type Quota struct {
	MaxValue *Count `json:"maxValue,omitempty"` // nil is unlimited
}

// Exists implements State.
func (q Quota) Exists() bool { return q.MaxValue != nil }

type QuotaSet struct {
	MaxValue Count `json:"maxValue"`
}

func (e QuotaSet) Evolve(q *Quota) { *q = Quota{MaxValue: &e.MaxValue} }

type QuotaLifted struct{}

func (QuotaLifted) Evolve(q *Quota) { *q = Quota{} }

// SetQuota bounds what the quota counts. What an account has beyond it stays;
// it only gets no more.
type SetQuota struct{ MaxValue Count }

func (c SetQuota) Decide(q Quota, _ time.Time) (Event[Quota], error) {
	if q.MaxValue != nil && *q.MaxValue == c.MaxValue {
		return nil, nil
	}
	var v Violations
	v.Require(c.MaxValue >= 0 && c.MaxValue <= MaxQuota, "maxValue", "must be from 0 to %d, or null for no limit", MaxQuota)
	return QuotaSet(c), v.Err()
}

// LiftQuota makes the account unlimited in what the quota counts.
type LiftQuota struct{}

func (LiftQuota) Decide(q Quota, _ time.Time) (Event[Quota], error) {
	if !q.Exists() {
		return nil, nil
	}
	return QuotaLifted{}, nil
}

// Metered is a state that counts against quotas.
type Metered interface{ Usage() Usage }

// A Usage is how much there is of what quotas count.
type Usage struct {
	Accelerators int64
	Jobs         int64
	Deployments  int64
	StorageBytes int64
}

// Plus is both together.
func (u Usage) Plus(o Usage) Usage {
	return Usage{u.Accelerators + o.Accelerators, u.Jobs + o.Jobs, u.Deployments + o.Deployments, u.StorageBytes + o.StorageBytes}
}

// Minus is what u has more than o, and negative what it has less.
func (u Usage) Minus(o Usage) Usage {
	return Usage{u.Accelerators - o.Accelerators, u.Jobs - o.Jobs, u.Deployments - o.Deployments, u.StorageBytes - o.StorageBytes}
}

// Of is how much of it counts against the quota with an ID; 0 for others.
func (u Usage) Of(quotaID string) int64 {
	switch quotaID {
	case QuotaAccelerators:
		return u.Accelerators
	case QuotaJobs:
		return u.Jobs
	case QuotaDeployments:
		return u.Deployments
	case QuotaStorageBytes:
		return u.StorageBytes
	}
	return 0
}

// Usage is the bytes of the dataset's files.
func (d Dataset) Usage() Usage { return Usage{StorageBytes: d.Files.Bytes()} }

// Usage is the bytes of the model's files and of its copies in other precisions.
func (m Model) Usage() Usage {
	u := Usage{StorageBytes: m.Files.Bytes()}
	for _, c := range m.Copies {
		u.StorageBytes += c.Files.Bytes()
	}
	return u
}

// Usage is the bytes of the evaluator's code and of the builds that it remembers.
func (e Evaluator) Usage() Usage {
	u := Usage{StorageBytes: e.Files.Bytes()}
	for _, b := range e.Built {
		if b.Files.Folder != e.Files.Folder { // earlier versions ran the uploaded files themselves
			u.StorageBytes += b.Files.Bytes()
		}
	}
	return u
}

// Usage is what the deployment counts for: itself until it is deleted, and the
// accelerators of the replicas that it wants, at least its minReplicaCount.
func (d Deployment) Usage() Usage {
	switch {
	case d.Live():
		return Usage{Deployments: 1, Accelerators: int64(d.AcceleratorCount) * int64(max(d.DesiredReplicas, d.MinReplicaCount))}
	case d.State == DeploymentFailedState:
		return Usage{Deployments: 1}
	}
	return Usage{}
}

// Usage is what the job counts for: itself until it ends, also while it is
// paused, and the accelerators that its attempt holds.
func (l JobLife) Usage() Usage {
	if !l.Exists() || l.Terminal() || l.Leaving() {
		return Usage{}
	}
	u := Usage{Jobs: 1}
	for _, n := range l.Takes.Accelerators {
		u.Accelerators += int64(n) * int64(len(l.Nodes))
	}
	return u
}
