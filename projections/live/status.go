package live

import (
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"anneal/domain"
)

// Limits of the live status. What is beyond them is dropped, the oldest first.
const (
	MaxNodes        = 10_000
	MaxJobs         = 2_000
	MaxReplicas     = 10_000
	MaxKeys         = 10_000
	MaxLoads        = 5_000 // deployments; an hour of each takes some 20 KB
	MaxMetricRows   = 4_096 // per job; beyond, every second row goes
	MaxMetricValues = 64    // per row
)

// A Status keeps what is worth knowing now and not worth recording for ever:
// when nodes sent their last heartbeats, how far jobs are, how busy replicas are. It has
// limits, is lost with the process, and is safe for concurrent use.
type Status struct {
	mu         sync.Mutex
	now        View
	shared     View   // the last copy of now
	generation uint64 // counts the copies
	steps      map[domain.Name]*loadStep
}

type jobStatus struct {
	progress   Progress
	rows       *btree.Map[int, MetricRow] // by step
	generation uint64                     // of the live status when this was made; an older one is shared with a view
}

// NewStatus makes an empty live status. Every node counts as seen at boot.
func NewStatus(boot time.Time) *Status {
	return &Status{steps: map[domain.Name]*loadStep{}, now: View{boot: boot, reports: 1, nodes: new(btree.Map[domain.Name, time.Time]), keys: new(btree.Map[domain.Name, time.Time]),
		jobs: new(btree.Map[domain.Name, *jobStatus]), replicas: new(btree.Map[string, ReplicaLoad]), loads: new(btree.Map[domain.Name, loads])}}
}

// Boot says that the process has only now begun to listen: every node counts
// as seen then, so that none is lost for the time in which nobody listened.
func (s *Status) Boot(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.boot = now
	s.now.reports++
}

// Heartbeat records a heartbeat of a node at a time. An earlier time than the one
// known changes nothing.
func (s *Status) Heartbeat(node domain.Name, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known := s.now.nodes.Get(node)
	if known && !at.After(last) {
		return
	}
	if !known && s.now.nodes.Len() >= MaxNodes {
		evict(s.now.nodes, func(t time.Time) time.Time { return t })
	}
	s.now.nodes.Set(node, at)
	s.now.reports++
}

// Report records how far an attempt of a job is, and rows of its metrics; a
// row of a step that is known replaces it, and values that are not finite are
// left out. The report of an earlier attempt is dropped. The first of a new
// attempt takes away the rows beyond its step: it will make them again. The
// first of a job that was made again under its name takes away all.
func (s *Status) Report(job domain.Name, progress Progress, rows ...MetricRow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, known := s.now.jobs.Get(job)
	if known && progress.Made.After(old.progress.Made) {
		s.now.jobs.Delete(job)
		old, known = nil, false
	}
	if known && (progress.Made.Before(old.progress.Made) || progress.Attempt < old.progress.Attempt) {
		return
	}
	next := s.own(job, old)
	switch {
	case !known || progress.Attempt > old.progress.Attempt:
		dropAfter(next.rows, progress.Step)
		next.progress = progress
	case !progress.Time.Before(old.progress.Time) && progress.Step >= old.progress.Step: // heartbeats may be handled out of order
		next.progress = progress
	}
	for _, row := range rows {
		row.Values = finite(row.Values)
		next.rows.Set(row.Step, row)
		if next.rows.Len() > MaxMetricRows {
			thin(next.rows)
		}
	}
	s.now.reports++
}

// Load records how busy a replica is, and adds it to what its deployment's load
// has been.
func (s *Status) Load(deployment domain.Name, replica string, load ReplicaLoad) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := replicaKey(deployment, replica)
	before, known := s.now.replicas.Get(key)
	if !known && s.now.replicas.Len() >= MaxReplicas {
		evict(s.now.replicas, func(r ReplicaLoad) time.Time { return r.Time })
	}
	s.now.replicas.Set(key, load)
	s.sampleLoad(deployment, replica, load, before.Time)
	s.now.reports++
}

// UseKey records when an API key was used; false when a use as late is known.
func (s *Status) UseKey(key domain.Name, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known := s.now.keys.Get(key)
	if known && !at.After(last) {
		return false
	}
	if !known && s.now.keys.Len() >= MaxKeys {
		evict(s.now.keys, func(t time.Time) time.Time { return t })
	}
	s.now.keys.Set(key, at)
	s.now.reports++
	return true
}

// ForgetKey drops what is known about an API key.
func (s *Status) ForgetKey(key domain.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.keys.Delete(key)
	s.now.reports++
}

// Forget drops what is known about a node, a job, or a deployment's replicas.
func (s *Status) Forget(name domain.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.nodes.Delete(name)
	s.now.jobs.Delete(name)
	s.now.loads.Delete(name)
	delete(s.steps, name)
	var replicas []string
	for replica := range s.now.Replicas(name) {
		replicas = append(replicas, replica)
	}
	for _, replica := range replicas {
		s.now.replicas.Delete(replicaKey(name, replica))
	}
	s.now.reports++
}

// ForgetReplica drops what is known about one replica.
func (s *Status) ForgetReplica(deployment domain.Name, replica string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.replicas.Delete(replicaKey(deployment, replica))
	s.now.reports++
}

// View returns the live status of now.
func (s *Status) View() View {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shared.reports != s.now.reports {
		s.shared = View{s.now.boot, s.now.reports, s.now.nodes.Copy(), s.now.jobs.Copy(), s.now.replicas.Copy(), s.now.loads.Copy(), s.now.keys.Copy()}
		s.generation++
	}
	return s.shared
}

// own returns the job's status in a form that no view shares.
func (s *Status) own(job domain.Name, old *jobStatus) *jobStatus {
	switch {
	case old == nil:
		if s.now.jobs.Len() >= MaxJobs {
			evict(s.now.jobs, func(j *jobStatus) time.Time { return j.progress.Time })
		}
		old = &jobStatus{rows: new(btree.Map[int, MetricRow]), generation: s.generation}
	case old.generation == s.generation:
		return old
	default:
		old = &jobStatus{old.progress, old.rows.Copy(), s.generation}
	}
	s.now.jobs.Set(job, old)
	return old
}

// evict deletes the entry that was reported longest ago, and returns its key.
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
