package domain

import "time"

// A quota limits how much of one resource, such as accelerators or storage, an account may use.
// Without a quota, the usage is unlimited. The quota QuotaGuaranteed limits nothing: it guarantees
// accelerators to the account. The operator sets and removes quotas.
//
//	(none) --SetQuota--> set --SetQuota--> set, with another value
//	set    --LiftQuota--> (none)
var Quotas = NewKind("quotas", map[string]Event[Quota]{
	"quota.set.v1":    QuotaSet{},
	"quota.lifted.v1": QuotaLifted{},
})

// The IDs of all quotas.
const (
	// accelerators that live deployments request or that are allocated to jobs
	QuotaAccelerators      = "accelerators"
	QuotaJobs              = "jobs"                    // number of jobs of all kinds that have not ended
	QuotaGuaranteed        = "guaranteed-accelerators" // accelerators guaranteed to the account; those above are borrowed
	QuotaDeployments       = "deployments"             // number of deployments whose deletion has not begun
	QuotaRequestsPerMinute = "requests-per-minute"     // requests to the management API and inference requests together
	QuotaStorageBytes      = "storage-bytes"           // bytes of the files of datasets, models, evaluators and batches
)

// QuotaIDs lists the IDs of all quotas in alphabetical order.
var QuotaIDs = []string{QuotaAccelerators, QuotaDeployments, QuotaGuaranteed, QuotaJobs,
	QuotaRequestsPerMinute, QuotaStorageBytes}

// MaxQuota is the maximum value of a quota. For storage it is a petabyte.
const MaxQuota = 1_000_000_000_000_000

// Quota is the state of one quota.
type Quota struct {
	MaxValue *Count `json:"maxValue,omitempty"` // maximum usage; nil if the quota is not set
}

// Exists implements State.
func (q Quota) Exists() bool { return q.MaxValue != nil }

type QuotaSet struct {
	MaxValue Count `json:"maxValue"`
}

func (e QuotaSet) Evolve(q *Quota) { *q = Quota{MaxValue: &e.MaxValue} }

type QuotaLifted struct{}

func (QuotaLifted) Evolve(q *Quota) { *q = Quota{} }

// SetQuota sets the maximum of a quota. An account that already exceeds the maximum keeps its
// resources, and cannot create more.
type SetQuota struct{ MaxValue Count }

func (c SetQuota) Decide(q Quota, _ time.Time) (Event[Quota], error) {
	if q.MaxValue != nil && *q.MaxValue == c.MaxValue {
		return nil, nil
	}
	var v Violations
	v.Require(c.MaxValue >= 0 && c.MaxValue <= MaxQuota, "maxValue", "must be from 0 to %d; null stands for no limit",
		MaxQuota)
	return QuotaSet(c), v.Err()
}

// LiftQuota removes the quota, so that the use is unlimited.
type LiftQuota struct{}

func (LiftQuota) Decide(q Quota, _ time.Time) (Event[Quota], error) {
	if !q.Exists() {
		return nil, nil
	}
	return QuotaLifted{}, nil
}

// Metered is the state of a resource that counts toward quotas. Usage returns the amounts.
type Metered interface{ Usage() Usage }

// A Usage holds the amounts that count toward each quota of an account.
type Usage struct {
	Accelerators int64
	Jobs         int64
	Deployments  int64
	StorageBytes int64
}

// Plus returns the sum of u and o.
func (u Usage) Plus(o Usage) Usage {
	return Usage{u.Accelerators + o.Accelerators, u.Jobs + o.Jobs, u.Deployments + o.Deployments,
		u.StorageBytes + o.StorageBytes}
}

// Minus returns u less o; amounts can be negative.
func (u Usage) Minus(o Usage) Usage {
	return Usage{u.Accelerators - o.Accelerators, u.Jobs - o.Jobs, u.Deployments - o.Deployments,
		u.StorageBytes - o.StorageBytes}
}

// Of returns the amount that counts toward the quota with this ID; 0 for an unknown ID.
func (u Usage) Of(quotaID string) int64 {
	switch quotaID {
	case QuotaAccelerators, QuotaGuaranteed:
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

// Usage counts the bytes of the dataset's files.
func (d Dataset) Usage() Usage { return Usage{StorageBytes: d.Files.Bytes()} }

// Usage counts the bytes of the model's files and of its copies in other precisions.
func (m Model) Usage() Usage {
	u := Usage{StorageBytes: m.Files.Bytes()}
	for _, c := range m.Copies {
		u.StorageBytes += c.Files.Bytes()
	}
	return u
}

// Usage counts the bytes of the evaluator's code and of its kept builds.
func (e Evaluator) Usage() Usage {
	u := Usage{StorageBytes: e.Files.Bytes()}
	for _, b := range e.Built {
		if b.Files.Prefix != e.Files.Prefix { // builds of earlier versions have no files of their own
			u.StorageBytes += b.Files.Bytes()
		}
	}
	return u
}

// Usage counts the deployment until its deletion begins. While the deployment is live, Usage also
// counts the accelerators of its desired replicas, or of minReplicaCount replicas if that is more.
// The shares of a deployment's replicas are added and rounded up to whole devices.
func (d Deployment) Usage() Usage {
	switch {
	case d.Live():
		return Usage{Deployments: 1, Accelerators: d.Devices(d.DesiredReplicas)}
	case d.State == DeploymentFailedState:
		return Usage{Deployments: 1}
	}
	return Usage{}
}

// Devices returns how many accelerators count toward QuotaAccelerators when the deployment has this
// number of desired replicas.
func (s DeploymentSpec) Devices(replicas int) int64 {
	devices := int64(s.AcceleratorCount) * int64(max(replicas, s.MinReplicaCount))
	if s.AcceleratorShare > 0 {
		return (devices*int64(s.AcceleratorShare) + WholeDevice - 1) / WholeDevice
	}
	return devices
}

// Usage counts the job until it ends or its deletion begins, and the accelerators allocated to its
// current attempt. A paused job counts.
func (l JobLife) Usage() Usage {
	if !l.Exists() || l.Terminal() || l.Deleting() {
		return Usage{}
	}
	u := Usage{Jobs: 1}
	for _, n := range l.Resources.Accelerators {
		u.Accelerators += int64(n) * int64(len(l.Nodes))
	}
	return u
}
