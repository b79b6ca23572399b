package live

import (
	"iter"
	"strings"
	"time"

	"github.com/tidwall/btree"

	"anneal/domain"
)

// Progress is the progress of a running job.
type Progress struct {
	Made         time.Time // creation time of the job, which distinguishes jobs that had the same name
	Attempt      int       // number of the job's attempt, from 1; reports of earlier attempts are dropped
	Step, Steps  int       // number of finished training steps, and of training steps expected in total; 0 if unknown
	Epoch        float64
	LearningRate float64
	Tokens       int64 // number of tokens that the job has trained on so far
	Time         time.Time
}

// Percent returns how many percent of the steps are finished, 0 to 100.
func (p Progress) Percent() int {
	if p.Steps <= 0 {
		return 0
	}
	return min(100, max(0, p.Step*100/p.Steps))
}

// A MetricRow is one row of a job's metrics: the values at one training step.
type MetricRow struct {
	Step         int                `json:"step"`
	Steps        int                `json:"steps"` // number of training steps of the job that are expected in total
	Epoch        float64            `json:"epoch"`
	Time         time.Time          `json:"time"`
	LearningRate float64            `json:"learning_rate"`
	Tokens       int64              `json:"tokens"` // number of tokens that the job has trained on so far
	Values       map[string]float64 `json:"values"` // values by name of the metric, such as "train/loss"
}

// ReplicaLoad is the load of one replica of a deployment.
type ReplicaLoad struct {
	Node                  domain.Name
	Ready                 bool
	Active, Queued, Slots int // number of requests being served, waiting, and that can be served concurrently
	// received requests per second; like the next three rates, a mean since the previous report
	RequestsPerSecond     float64
	CompletedPerSecond    float64 // requests that ended per second
	PromptTokensPerSecond float64
	TokensPerSecond       float64 // generated tokens per second
	Time                  time.Time
	Addons                map[string]string // state of each addon on the replica, by addon ID; do not modify
	// Unloaded has the loaded addons that the engine does not have now, because others took their
	// place. The value is true if requests wait until the engine has loaded the addon again. Do not
	// modify it.
	Unloaded      map[string]bool
	AddonLoadTime time.Duration // average time in which the engine loads an addon; 0 if unknown
	Engine        EngineLoad
}

// EngineLoad is the load that the engine of a replica reports. A number that it does not report is -1.
type EngineLoad struct {
	PendingTokens          int64         // prompt tokens of its requests that are neither computed nor cached
	Running, Waiting       int64         // number of requests in its steps, and that it has not started
	CacheTokens, CacheUsed int64         // size of its KV cache, and how much of it requests use, in tokens
	Age                    time.Duration // time from the measurement to the report
}

// A View is an immutable copy of the live status, safe for concurrent use. The zero value is empty.
type View struct {
	from     time.Time // time since which the process receives heartbeats: see Status.ListenFrom
	until    time.Time // result of ReceivedUntil: see Status.ReceivedAll
	reports  uint64    // number of changes of the status so far: result of Version
	nodes    *btree.Map[domain.Name, time.Time]
	jobs     *btree.Map[domain.Name, *jobStatus]
	replicas *btree.Map[string, ReplicaLoad] // load of each replica, by replicaKey
	loads    *btree.Map[domain.Name, loads]
	keys     *btree.Map[domain.Name, time.Time]
	devices  *btree.Map[domain.Name, nodeDevices]
	joined   *btree.Map[domain.Name, time.Time] // by node: time of its last registration: see Status.Registered
	releases *btree.Map[string, releaseSamples] // by deployment, # and gateway
	// by node or replicaKey: when it did not respond: see Unreachable
	marks *btree.Map[string, time.Time]
	// by job: when a client has last used its training service
	services *btree.Map[domain.Name, time.Time]
}

// Version returns a number that increases with each change of the live status.
func (v View) Version() uint64 { return v.reports }

// KeyUsed returns when an API key was last used; zero if no use is recorded.
func (v View) KeyUsed(key domain.Name) time.Time {
	if v.keys == nil {
		return time.Time{}
	}
	at, _ := v.keys.Get(key)
	return at
}

// LastHeartbeat returns the time of the last heartbeat received from a node; zero if none.
func (v View) LastHeartbeat(node domain.Name) time.Time {
	if v.nodes == nil {
		return time.Time{}
	}
	at, _ := v.nodes.Get(node)
	return at
}

// Seen returns until when a node is known to have been alive, or when this process began to receive
// heartbeats: the latest of the node's last heartbeat, its last registration (see
// Status.Registered), NewStatus and Status.ListenFrom.
func (v View) Seen(node domain.Name) time.Time {
	seen := v.from
	if at := v.LastHeartbeat(node); at.After(seen) {
		seen = at
	}
	if v.joined != nil {
		if at, _ := v.joined.Get(node); at.After(seen) {
			seen = at
		}
	}
	return seen
}

// ReceivedUntil returns the time up to which the process has received all heartbeats since
// Status.ListenFrom. So a node has sent no heartbeat between Seen and ReceivedUntil. After
// ReceivedUntil it may have sent some, because the process may have been paused or disconnected.
func (v View) ReceivedUntil() time.Time { return v.until }

// Progress returns the progress of a job. The result is false when the job has not reported.
func (v View) Progress(job domain.Name) (Progress, bool) {
	if one := v.job(job); one != nil {
		return one.progress, true
	}
	return Progress{}, false
}

// Metrics yields the rows of a job's metrics whose step is greater than lastStep, ordered by step.
func (v View) Metrics(job domain.Name, lastStep int) iter.Seq[MetricRow] {
	return func(yield func(MetricRow) bool) {
		if one := v.job(job); one != nil {
			one.rows.Ascend(lastStep+1, func(_ int, row MetricRow) bool { return yield(row) })
		}
	}
}

// Latest returns the row of a job's metrics with the highest step. The result is false when the job
// has no metrics.
func (v View) Latest(job domain.Name) (MetricRow, bool) {
	if one := v.job(job); one != nil {
		_, row, ok := one.rows.Max()
		return row, ok
	}
	return MetricRow{}, false
}

func (v View) job(name domain.Name) *jobStatus {
	if v.jobs == nil {
		return nil
	}
	one, _ := v.jobs.Get(name)
	return one
}

// Replica returns the load of a replica. The result is false when the replica has not reported.
func (v View) Replica(deployment domain.Name, replica string) (ReplicaLoad, bool) {
	if v.replicas == nil {
		return ReplicaLoad{}, false
	}
	return v.replicas.Get(replicaKey(deployment, replica))
}

// Replicas yields the ID and the load of each replica of a deployment that has reported.
func (v View) Replicas(deployment domain.Name) iter.Seq2[string, ReplicaLoad] {
	prefix := replicaKey(deployment, "")
	return func(yield func(string, ReplicaLoad) bool) {
		if v.replicas == nil {
			return
		}
		v.replicas.Ascend(prefix, func(key string, load ReplicaLoad) bool {
			replica, found := strings.CutPrefix(key, prefix)
			return found && yield(replica, load)
		})
	}
}

func replicaKey(deployment domain.Name, replica string) string {
	return string(deployment) + "\x00" + replica
}
