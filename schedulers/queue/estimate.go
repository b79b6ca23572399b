package queue

import (
	"cmp"
	"math/bits"
	"slices"
)

// An Interval is an estimate of a wait, in seconds: the wait is from Low to High with a probability
// of 80 %, and as likely below Median as above.
type Interval struct{ Low, Median, High int64 }

// Features describe the queue at the arrival of a job, as far as they tell how long it waits. The
// numbers are logarithmic classes.
type Features struct {
	Size   int  // of the job, in units
	Over   bool // its account uses more than its share
	Load   int  // units ahead of the job, relative to the units that started in the last hour
	Length int  // jobs of its account, shape and freshness that wait
	Age    int  // age of the first of these jobs
}

const (
	maxWaits   = 512       // waits that a bucket remembers
	minWaits   = 20        // waits from which a bucket is used; a coarser bucket is used before
	parts      = 1_000_000 // a quantile level is a number of parts per million
	lowLevel   = 100_000
	highLevel  = 900_000
	stretch    = 4     // see quantile
	adaptation = 1_000 // how far one wait outside of its interval moves a level
)

// An Estimator estimates waits from earlier waits in similar situations. It adapts the levels of its
// quantiles to the waits that it observes, as adaptive conformal inference does (Gibbs and Candès,
// NeurIPS 2021), because the load changes while jobs wait, and past waits alone do not cover enough.
type Estimator struct {
	buckets   map[bucket]*waits
	low, high int64
}

// NewEstimator returns an Estimator without history.
func NewEstimator() *Estimator {
	return &Estimator{map[bucket]*waits{}, lowLevel, highLevel}
}

// A bucket is Features without those that a coarser bucket ignores.
type bucket struct {
	coarse int
	Features
}

// waits are the last waits of a bucket, in a ring.
type waits struct {
	last []int64
	next int
}

// buckets returns the buckets of a situation, the finest first.
func (f Features) buckets() []bucket {
	all := []bucket{{0, f}}
	f.Age = 0
	all = append(all, bucket{1, f})
	f.Length = 0
	all = append(all, bucket{2, f})
	f.Load = 0
	all = append(all, bucket{3, f})
	return append(all, bucket{4, Features{Size: f.Size}}, bucket{5, Features{}})
}

// Estimate estimates the wait of a job that has just arrived; false without enough history.
func (e *Estimator) Estimate(f Features) (Interval, bool) {
	for _, b := range f.buckets() {
		w := e.buckets[b]
		if w == nil || len(w.last) < minWaits {
			continue
		}
		sorted := slices.Sorted(slices.Values(w.last))
		return Interval{quantile(sorted, e.low), quantile(sorted, parts/2), quantile(sorted, e.high)}, true
	}
	return Interval{}, false
}

// quantile returns the value at a level of sorted values. It is 0 at levels below 0, and above the
// maximum at levels above parts: by stretch times the maximum for each further parts. The levels are
// not limited to the range, because then the waits would be outside of their intervals too often.
func quantile(sorted []int64, level int64) int64 {
	switch n := int64(len(sorted)); {
	case level <= 0:
		return 0
	case level >= parts:
		return sorted[n-1] + sorted[n-1]*(level-parts)/parts*stretch
	default:
		return sorted[level*n/parts]
	}
}

// Observe records the wait of a job that has started. given is the estimate made at its arrival; nil
// for none.
func (e *Estimator) Observe(f Features, given *Interval, wait int64) {
	for _, b := range f.buckets() {
		w := e.buckets[b]
		if w == nil {
			w = &waits{}
			e.buckets[b] = w
		}
		if len(w.last) < maxWaits {
			w.last = append(w.last, wait)
			continue
		}
		w.last[w.next] = wait
		w.next = (w.next + 1) % maxWaits
	}
	if given == nil {
		return
	}
	e.low = adapt(e.low, wait < given.Low, lowLevel)
	e.high = adapt(e.high, wait <= given.High, highLevel)
}

// adapt moves a level so that, over time, a share of goal parts of the waits is below the quantile.
func adapt(level int64, below bool, goal int64) int64 {
	if below {
		return max(-4*parts, level-adaptation*(parts-goal)/parts)
	}
	return min(4*parts, level+adaptation*goal/parts)
}

// Position returns how many jobs, and how many units, are before a waiting job in the order of the
// queue; false if the job does not wait. It counts jobs of the same type only.
func (q *Queue) Position(id string, now int64) (jobs, units int64, ok bool) {
	e := q.jobs[id]
	if e == nil || e.group == nil {
		return 0, 0, false
	}
	q.now = now
	q.updateLate()
	mine := orderOf(q, e)
	for _, g := range q.groups {
		if q.list[g.shape].kind != e.Type {
			continue
		}
		for _, other := range g.heap {
			if other != e && orderOf(q, other).compare(mine) < 0 {
				jobs, units = jobs+1, units+q.list[g.shape].size
			}
		}
	}
	return jobs, units, true
}

// An order is the place of a job in the queue.
type order struct {
	promised, last bool
	key            int64
	id             string
}

func orderOf(q *Queue, e *entry) order {
	return order{e.Promised, e.Last,
		e.deadline + q.extra(e.account, e.Type) - q.boost(e.account, e.Type, e.group.fresh), e.ID}
}

func (a order) compare(b order) int {
	return cmp.Or(rank(b.promised)-rank(a.promised), rank(a.last)-rank(b.last), cmp.Compare(a.key, b.key),
		cmp.Compare(a.id, b.id))
}

// Features describes the situation of a waiting job. started is how many units started in the last
// hour.
func (q *Queue) Features(id string, now, started int64) (Features, bool) {
	_, ahead, ok := q.Position(id, now)
	if !ok {
		return Features{}, false
	}
	e := q.jobs[id]
	return Features{Size: bits.Len64(uint64(q.list[e.shape].size)), Over: q.over(e.account, e.Type),
		Load:   bits.Len64(uint64(8 * ahead / max(1, started))),
		Length: bits.Len64(uint64(len(e.group.heap))),
		Age:    bits.Len64(uint64(max(0, now-e.group.heap[0].Arrival) / 60))}, true
}
