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
	Made         time.Time // creation time of the job; distinguishes it from an earlier one of its name
	Attempt      int       // of the job, from 1; what an earlier attempt reports is dropped
	Step, Steps  int       // done, and expected in all (0: not known)
	Epoch        float64
	LearningRate float64
	Tokens       int64 // trained on so far
	Time         time.Time
}

// Percent is how much of the work is done, 0 to 100.
func (p Progress) Percent() int {
	if p.Steps <= 0 {
		return 0
	}
	return min(100, max(0, p.Step*100/p.Steps))
}

// A MetricRow is one row of a job's metrics.
type MetricRow struct {
	Step         int                `json:"step"`
	Steps        int                `json:"steps"` // expected in all
	Epoch        float64            `json:"epoch"`
	Time         time.Time          `json:"time"`
	LearningRate float64            `json:"learning_rate"`
	Tokens       int64              `json:"tokens"` // trained on so far
	Values       map[string]float64 `json:"values"` // "train/loss" …
}

// ReplicaLoad is how busy one replica of a deployment is.
type ReplicaLoad struct {
	Node                  domain.Name
	Ready                 bool
	Active, Queued, Slots int     // requests being answered, waiting, and answerable at once
	RequestsPerSecond     float64 // this and what follows over the last report's interval
	PromptTokensPerSecond float64
	TokensPerSecond       float64 // generated
	Time                  time.Time
	Addons                map[string]string // its addons, ID → how far they are; not to be edited
}

// A View is the live status at one moment, immutable and safe for concurrent
// use. The zero value knows nothing.
type View struct {
	boot     time.Time
	reports  uint64 // counts what came before
	nodes    *btree.Map[domain.Name, time.Time]
	jobs     *btree.Map[domain.Name, *jobStatus]
	replicas *btree.Map[string, ReplicaLoad] // by replicaKey
	loads    *btree.Map[domain.Name, loads]
	keys     *btree.Map[domain.Name, time.Time]
}

// Version returns a number that differs between views when anything was recorded between them.
func (v View) Version() uint64 { return v.reports }

// KeyUsed is when an API key was last used, zero when that is not known.
func (v View) KeyUsed(key domain.Name) time.Time {
	if v.keys == nil {
		return time.Time{}
	}
	at, _ := v.keys.Get(key)
	return at
}

// LastHeartbeat is when a node sent the last heartbeat that this process received; zero if never.
func (v View) LastHeartbeat(node domain.Name) time.Time {
	if v.nodes == nil {
		return time.Time{}
	}
	at, _ := v.nodes.Get(node)
	return at
}

// Seen is when a node sent its last heartbeat; the process's own start when not since.
func (v View) Seen(node domain.Name) time.Time {
	if at := v.LastHeartbeat(node); at.After(v.boot) {
		return at
	}
	return v.boot
}

// Progress is how far a job is; false when nothing was reported.
func (v View) Progress(job domain.Name) (Progress, bool) {
	if one := v.job(job); one != nil {
		return one.progress, true
	}
	return Progress{}, false
}

// Metrics yields the rows of a job's metrics beyond a step, in order.
func (v View) Metrics(job domain.Name, after int) iter.Seq[MetricRow] {
	return func(yield func(MetricRow) bool) {
		if one := v.job(job); one != nil {
			one.rows.Ascend(after+1, func(_ int, row MetricRow) bool { return yield(row) })
		}
	}
}

// Latest is the last row of a job's metrics; false when it has none.
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

// Replica is the load of one replica; false when nothing was reported.
func (v View) Replica(deployment domain.Name, replica string) (ReplicaLoad, bool) {
	if v.replicas == nil {
		return ReplicaLoad{}, false
	}
	return v.replicas.Get(replicaKey(deployment, replica))
}

// Replicas yields the replicas of a deployment that reported, and their load.
func (v View) Replicas(deployment domain.Name) iter.Seq2[string, ReplicaLoad] {
	prefix := replicaKey(deployment, "")
	return func(yield func(string, ReplicaLoad) bool) {
		if v.replicas == nil {
			return
		}
		v.replicas.Ascend(prefix, func(key string, load ReplicaLoad) bool {
			replica, ours := strings.CutPrefix(key, prefix)
			return ours && yield(replica, load)
		})
	}
}

func replicaKey(deployment domain.Name, replica string) string {
	return string(deployment) + "\x00" + replica
}
