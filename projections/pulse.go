package projections

import (
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"anneal/domain"
)

// Limits of the pulse. What is beyond them is dropped, the oldest first.
const (
	MaxPulseNodes    = 10_000
	MaxPulseJobs     = 2_000
	MaxPulseReplicas = 10_000
	MaxPulseKeys     = 10_000
	MaxPulseLoads    = 5_000 // deployments; an hour of each takes some 20 KB
	MaxMetricRows    = 4_096 // per job; beyond, every second row goes
	MaxMetricValues  = 64    // per row
)

// A LiveStatus keeps what is worth knowing now and not worth recording for ever:
// when nodes were last heard, how far jobs are, how busy replicas are. It has
// limits, is lost with the process, and is safe for concurrent use.
type LiveStatus struct {
	mu         sync.Mutex
	now        LiveStatusView
	lent       LiveStatusView // the last copy of now
	generation uint64         // counts the copies
	steps      map[domain.Name]*loadStep
}

type jobPulse struct {
	progress   Progress
	rows       *btree.Map[int, MetricRow] // by step
	generation uint64                     // of the pulse when this was made; an older one is shared with a view
}

// NewLiveStatus makes an empty pulse. Every node counts as seen at boot.
func NewLiveStatus(boot time.Time) *LiveStatus {
	return &LiveStatus{steps: map[domain.Name]*loadStep{}, now: LiveStatusView{boot: boot, reports: 1, nodes: new(btree.Map[domain.Name, time.Time]), keys: new(btree.Map[domain.Name, time.Time]),
		jobs: new(btree.Map[domain.Name, *jobPulse]), replicas: new(btree.Map[string, ReplicaLoad]), loads: new(btree.Map[domain.Name, loads])}}
}

// Boot says that the process has only now begun to listen: every node counts
// as seen then, so that none is lost for the time in which nobody listened.
func (p *LiveStatus) Boot(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.boot = now
	p.now.reports++
}

// Heartbeat records that a node was heard at a time. An earlier time than the one
// known changes nothing.
func (p *LiveStatus) Heartbeat(node domain.Name, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, known := p.now.nodes.Get(node)
	if known && !at.After(last) {
		return
	}
	if !known && p.now.nodes.Len() >= MaxPulseNodes {
		evict(p.now.nodes, func(t time.Time) time.Time { return t })
	}
	p.now.nodes.Set(node, at)
	p.now.reports++
}

// Report records how far an attempt of a job is, and rows of its metrics; a
// row of a step that is known replaces it, and values that are not finite are
// left out. The report of an earlier attempt is dropped. The first of a new
// attempt takes away the rows beyond its step: it will make them again. The
// first of a job that was made again under its name takes away all.
func (p *LiveStatus) Report(job domain.Name, progress Progress, rows ...MetricRow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old, known := p.now.jobs.Get(job)
	if known && progress.Made.After(old.progress.Made) {
		p.now.jobs.Delete(job)
		old, known = nil, false
	}
	if known && (progress.Made.Before(old.progress.Made) || progress.Attempt < old.progress.Attempt) {
		return
	}
	next := p.own(job, old)
	switch {
	case !known || progress.Attempt > old.progress.Attempt:
		dropAfter(next.rows, progress.Step)
		next.progress = progress
	case !progress.Time.Before(old.progress.Time) && progress.Step >= old.progress.Step: // a beat may be handled after a later one
		next.progress = progress
	}
	for _, row := range rows {
		row.Values = finite(row.Values)
		next.rows.Set(row.Step, row)
		if next.rows.Len() > MaxMetricRows {
			thin(next.rows)
		}
	}
	p.now.reports++
}

// Load records how busy a replica is, and adds it to what its deployment's load
// has been.
func (p *LiveStatus) Load(deployment domain.Name, replica string, load ReplicaLoad) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := replicaKey(deployment, replica)
	before, known := p.now.replicas.Get(key)
	if !known && p.now.replicas.Len() >= MaxPulseReplicas {
		evict(p.now.replicas, func(r ReplicaLoad) time.Time { return r.Time })
	}
	p.now.replicas.Set(key, load)
	p.sampleLoad(deployment, replica, load, before.Time)
	p.now.reports++
}

// UseKey records when an API key was used; false when a use as late is known.
func (p *LiveStatus) UseKey(key domain.Name, at time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, known := p.now.keys.Get(key)
	if known && !at.After(last) {
		return false
	}
	if !known && p.now.keys.Len() >= MaxPulseKeys {
		evict(p.now.keys, func(t time.Time) time.Time { return t })
	}
	p.now.keys.Set(key, at)
	p.now.reports++
	return true
}

// ForgetKey drops what is known about an API key.
func (p *LiveStatus) ForgetKey(key domain.Name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.keys.Delete(key)
	p.now.reports++
}

// Forget drops what is known about a node, a job, or a deployment's replicas.
func (p *LiveStatus) Forget(name domain.Name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.nodes.Delete(name)
	p.now.jobs.Delete(name)
	p.now.loads.Delete(name)
	delete(p.steps, name)
	var replicas []string
	for replica := range p.now.Replicas(name) {
		replicas = append(replicas, replica)
	}
	for _, replica := range replicas {
		p.now.replicas.Delete(replicaKey(name, replica))
	}
	p.now.reports++
}

// ForgetReplica drops what is known about one replica.
func (p *LiveStatus) ForgetReplica(deployment domain.Name, replica string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.replicas.Delete(replicaKey(deployment, replica))
	p.now.reports++
}

// View is the pulse of now.
func (p *LiveStatus) View() LiveStatusView {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lent.reports != p.now.reports {
		p.lent = LiveStatusView{p.now.boot, p.now.reports, p.now.nodes.Copy(), p.now.jobs.Copy(), p.now.replicas.Copy(), p.now.loads.Copy(), p.now.keys.Copy()}
		p.generation++
	}
	return p.lent
}

// own answers the job's pulse in a form that no view shares.
func (p *LiveStatus) own(job domain.Name, old *jobPulse) *jobPulse {
	switch {
	case old == nil:
		if p.now.jobs.Len() >= MaxPulseJobs {
			evict(p.now.jobs, func(j *jobPulse) time.Time { return j.progress.Time })
		}
		old = &jobPulse{rows: new(btree.Map[int, MetricRow]), generation: p.generation}
	case old.generation == p.generation:
		return old
	default:
		old = &jobPulse{old.progress, old.rows.Copy(), p.generation}
	}
	p.now.jobs.Set(job, old)
	return old
}

// evict deletes the entry that was heard of longest ago, and answers its key.
func evict[K ~string, V any](entries *btree.Map[K, V], at func(V) time.Time) K {
	var oldest K
	var when time.Time
	entries.Scan(func(key K, value V) bool {
		if t := at(value); oldest == "" || t.Before(when) {
			oldest, when = key, t
		}
		return true
	})
	entries.Delete(oldest)
	return oldest
}

func dropAfter(rows *btree.Map[int, MetricRow], step int) {
	for last, _, ok := rows.Max(); ok && last > step; last, _, ok = rows.Max() {
		rows.Delete(last)
	}
}

// thin takes away every second row, but neither the first nor the last.
func thin(rows *btree.Map[int, MetricRow]) {
	for i, step := range rows.Keys() {
		if i%2 == 1 && i < MaxMetricRows {
			rows.Delete(step)
		}
	}
}

// finite is a copy of the values that JSON can carry, MaxMetricValues at most.
func finite(values map[string]float64) map[string]float64 {
	kept := make(map[string]float64, min(len(values), MaxMetricValues))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if v := values[key]; !math.IsNaN(v) && !math.IsInf(v, 0) && len(kept) < MaxMetricValues {
			kept[key] = v
		}
	}
	return kept
}
