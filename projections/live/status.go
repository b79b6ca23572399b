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

// Limits of the live status. When the maximum number of nodes, jobs, replicas, API keys or load
// histories is reached, the one with the oldest report is dropped.
const (
	MaxNodes    = 10_000
	MaxJobs     = 2_000
	MaxReplicas = 10_000
	MaxKeys     = 10_000
	MaxLoads    = 5_000 // maximum number of deployments with a load history; each history takes about 20 KB
	// maximum number of rows of metrics of a job; when a job has more, every second row is dropped
	MaxMetricRows   = 4_096
	MaxMetricValues = 64 // maximum number of values in a row of metrics
)

// A Status keeps the live status that is not recorded in the log: heartbeats of nodes, progress of
// jobs, load of replicas. The status is in memory, so a restart loses it. A Status is safe for
// concurrent use.
type Status struct {
	mu         sync.Mutex
	now        View
	shared     View   // copy of the field now that View returned last, which it returns again until the status changes
	generation uint64 // number of copies of now; a jobStatus with a lower generation is shared with a View
	steps      map[domain.Name]*loadStep
	queues     map[string]time.Time      // time of the last report of each queue with waiting requests, by replicaKey
	touched    map[domain.Name]time.Time // see TouchedTraining
}

type jobStatus struct {
	progress   Progress
	rows       *btree.Map[int, MetricRow] // rows of metrics, by step
	generation uint64                     // value of Status.generation when this jobStatus was created
}

// NewStatus returns an empty live status for a process that receives heartbeats from the given time
// on: see ListenFrom.
func NewStatus(start time.Time) *Status {
	return &Status{steps: map[domain.Name]*loadStep{}, queues: map[string]time.Time{},
		now: View{from: start, reports: 1, nodes: new(btree.Map[domain.Name, time.Time]),
			keys: new(btree.Map[domain.Name, time.Time]),
			jobs: new(btree.Map[domain.Name, *jobStatus]), replicas: new(btree.Map[string, ReplicaLoad]),
			loads: new(btree.Map[domain.Name, loads]), devices: new(btree.Map[domain.Name, nodeDevices]),
			joined: new(btree.Map[domain.Name, time.Time]), releases: new(btree.Map[string, releaseSamples]),
			marks: new(btree.Map[string, time.Time]), services: new(btree.Map[domain.Name, time.Time])}}
}

// ListenFrom records that the process may have missed heartbeats that were sent before now.
// View.Seen then returns at least now for every node, so that no node becomes LOST because of
// heartbeats that this process could not receive.
func (s *Status) ListenFrom(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.from = now
	s.now.reports++
}

// ReceivedAll records that the process has received all heartbeats that were sent before end and
// after the time of ListenFrom: see View.ReceivedUntil.
func (s *Status) ReceivedAll(end time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end.After(s.now.until) {
		s.now.until = end
		s.now.reports++
	}
}

// Heartbeat records the time of a node's heartbeat, unless a later heartbeat is recorded.
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

// Registered records when the event of a node's registration was folded, by this process's clock.
// The time in the event can be that of another control plane, whose clock may differ.
func (s *Status) Registered(node domain.Name, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.now.joined.Get(node); !known && s.now.joined.Len() >= MaxNodes {
		evict(s.now.joined, func(t time.Time) time.Time { return t })
	}
	s.now.joined.Set(node, at)
	s.now.reports++
}

// Report records the progress of a job's attempt, and rows of its metrics. A row replaces an
// earlier one of the same step; values that are not finite are left out. A report of an earlier
// attempt is dropped. The first report of an attempt removes the rows after the reported step,
// because the attempt will report these steps again. The first report of a new job with the name of
// an earlier one removes the progress and the rows of the earlier job.
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
	next := s.writable(job, old)
	switch {
	case !known || progress.Attempt > old.progress.Attempt:
		dropAfter(next.rows, progress.Step)
		next.progress = progress
	// Reports can be handled out of order, so an older one does not replace the progress.
	case !progress.Time.Before(old.progress.Time) && progress.Step >= old.progress.Step:
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

// Load records the load of a replica, and adds it to the load history of its deployment.
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

// UseKey records that an API key was used at the given time. It returns false when the same or a
// later use is already recorded.
func (s *Status) UseKey(key domain.Name, useTime time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known := s.now.keys.Get(key)
	if known && !useTime.After(last) {
		return false
	}
	if !known && s.now.keys.Len() >= MaxKeys {
		evict(s.now.keys, func(t time.Time) time.Time { return t })
	}
	s.now.keys.Set(key, useTime)
	s.now.reports++
	return true
}

// ForgetKey removes the status of an API key.
func (s *Status) ForgetKey(key domain.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.keys.Delete(key)
	s.now.reports++
}

// Forget removes the status of a node, a job, or a deployment and its replicas.
func (s *Status) Forget(name domain.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.nodes.Delete(name)
	s.now.devices.Delete(name)
	s.now.jobs.Delete(name)
	s.now.services.Delete(name)
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

// ForgetReplica removes the status of one replica.
func (s *Status) ForgetReplica(deployment domain.Name, replica string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.replicas.Delete(replicaKey(deployment, replica))
	s.now.reports++
}

// View returns an immutable copy of the current live status.
func (s *Status) View() View {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shared.reports != s.now.reports {
		s.shared = View{s.now.from, s.now.until, s.now.reports, s.now.nodes.Copy(), s.now.jobs.Copy(), s.now.replicas.Copy(),
			s.now.loads.Copy(), s.now.keys.Copy(), s.now.devices.Copy(), s.now.joined.Copy(), s.now.releases.Copy(),
			s.now.marks.Copy(), s.now.services.Copy()}
		s.generation++
	}
	return s.shared
}

// writable returns a jobStatus of a job for a change: old, a copy of old if a View shares it, or a
// new one if old is nil.
func (s *Status) writable(job domain.Name, old *jobStatus) *jobStatus {
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

// evict deletes the entry with the earliest time, and returns the entry's key. timeOf returns the
// time of an entry's value.
func evict[K ~string, V any](entries *btree.Map[K, V], timeOf func(V) time.Time) K {
	var oldest K
	var when time.Time
	entries.Scan(func(key K, value V) bool {
		if t := timeOf(value); oldest == "" || t.Before(when) {
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

// thin removes every second row of a job's metrics, but keeps the first and the last.
func thin(rows *btree.Map[int, MetricRow]) {
	for i, step := range rows.Keys() {
		if i%2 == 1 && i < MaxMetricRows {
			rows.Delete(step)
		}
	}
}

// finite returns those values that are finite, at most MaxMetricValues of them, because JSON cannot
// represent NaN and infinity.
func finite(values map[string]float64) map[string]float64 {
	kept := make(map[string]float64, min(len(values), MaxMetricValues))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if v := values[key]; !math.IsNaN(v) && !math.IsInf(v, 0) && len(kept) < MaxMetricValues {
			kept[key] = v
		}
	}
	return kept
}
