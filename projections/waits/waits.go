// Package waits estimates how long jobs wait for capacity, from the waits of jobs that have started.
package waits

import (
	"slices"

	"github.com/tidwall/btree"

	"anneal/domain"
)

const (
	maxWaits   = 512       // waits that a bucket remembers
	minWaits   = 20        // waits from which a bucket is used; a coarser bucket is used before
	parts      = 1_000_000 // a quantile level is a number of parts per million
	lowLevel   = 100_000
	highLevel  = 900_000
	stretch    = 4     // see quantile
	adaptation = 1_000 // how far one wait outside of its interval moves a level
	rateWindow = 3_600 // seconds in which starts are counted
)

// A History holds the waits of started jobs, by their situation when they began to wait, and the
// starts of the last hour. It adapts the levels of its quantiles to the waits that it observes, as
// adaptive conformal inference does (Gibbs and Candès, NeurIPS 2021). Without the adaptation, the
// intervals would contain too few waits, because the load changes while jobs wait. Times are seconds
// since the Unix epoch.
type History struct {
	buckets    btree.Map[uint64, *bucket]
	low, high  int64 // levels
	starts     []Start
	shared     *History // the last result of Share; nil after a change
	generation uint64   // number of results of Share; a bucket with a lower generation is shared
}

// A Start is the start of a job.
type Start struct {
	At    int64  `json:"at"`
	Type  string `json:"type,omitempty"` // accelerator type; "" for jobs without accelerators
	Units int64  `json:"units"`
}

// A bucket holds the last waits in one situation, in a ring.
type bucket struct {
	generation uint64
	last       []int64
	next       int
}

// New returns a History without waits.
func New() *History { return &History{low: lowLevel, high: highLevel} }

// Share returns a copy that does not change any more.
func (h *History) Share() *History {
	if h.shared == nil {
		h.shared = &History{buckets: *h.buckets.Copy(), low: h.low, high: h.high, starts: h.starts}
		h.generation++
	}
	return h.shared
}

// Fork returns a copy that changes independently of h.
func (h *History) Fork() *History {
	shared := h.Share()
	return &History{buckets: *shared.buckets.Copy(), low: shared.low, high: shared.high,
		starts: slices.Clone(shared.starts), generation: h.generation}
}

// keys returns the buckets of a situation, the finest first. A coarser bucket ignores parts of the
// situation.
func keys(s domain.QueueSituation) []uint64 {
	all := []uint64{key(0, s)}
	s.Age = 0
	all = append(all, key(1, s))
	s.Length = 0
	all = append(all, key(2, s))
	s.Load = 0
	all = append(all, key(3, s))
	s.Over = false
	all = append(all, key(4, s))
	s.Size = 0
	return append(all, key(5, s))
}

// key packs a situation into a number. Each part is a bit length of at most 64, so it fits into 7 bits.
func key(coarse uint64, s domain.QueueSituation) uint64 {
	packed := coarse
	for _, part := range []int{bit(s.Over), bit(s.Again), s.Size, s.Load, s.Length, s.Age} {
		packed = packed<<7 | uint64(part)&0x7f
	}
	return packed
}

func bit(set bool) int {
	if set {
		return 1
	}
	return 0
}

// Estimate estimates the wait of a job that begins to wait; false without enough history.
func (h *History) Estimate(s domain.QueueSituation) (domain.WaitEstimate, bool) {
	for _, k := range keys(s) {
		b, ok := h.buckets.Get(k)
		if !ok || len(b.last) < minWaits {
			continue
		}
		sorted := slices.Sorted(slices.Values(b.last))
		median := quantile(sorted, parts/2)
		return domain.WaitEstimate{Low: min(quantile(sorted, h.low), median), Median: median,
			High: max(quantile(sorted, h.high), median)}, true
	}
	return domain.WaitEstimate{}, false
}

// quantile returns the value at a level of sorted values. Below level 0 it returns 0. Above level parts
// it returns the maximum plus stretch times the maximum for each further parts. Levels may be outside
// of 0 to parts, because otherwise waits would be outside of their intervals too often.
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

// Observe records the wait of a job that has started, in seconds. given is the estimate made when the
// wait began; nil for none. The low level stays at or below the median, and the high level at or above
// it. Otherwise jobs that do not wait, whose waits are never below an interval, would raise the low
// level above the high one.
func (h *History) Observe(s domain.QueueSituation, given *domain.WaitEstimate, wait int64) {
	h.shared = nil
	for _, k := range keys(s) {
		b, ok := h.buckets.Get(k)
		switch {
		case !ok:
			b = &bucket{generation: h.generation}
			h.buckets.Set(k, b)
		case b.generation != h.generation:
			b = &bucket{h.generation, slices.Clone(b.last), b.next}
			h.buckets.Set(k, b)
		}
		if len(b.last) < maxWaits {
			b.last = append(b.last, wait)
			continue
		}
		b.last[b.next] = wait
		b.next = (b.next + 1) % maxWaits
	}
	if given == nil {
		return
	}
	h.low = min(parts/2, adapt(h.low, wait < given.Low, lowLevel))
	h.high = max(parts/2, adapt(h.high, wait <= given.High, highLevel))
}

// adapt moves a level so that, over time, a share of goal parts of the waits is below the quantile.
func adapt(level int64, below bool, goal int64) int64 {
	if below {
		return max(-4*parts, level-adaptation*(parts-goal)/parts)
	}
	return min(4*parts, level+adaptation*goal/parts)
}

// Start records that a job has started, whether or not it has waited.
func (h *History) Start(s Start) {
	h.shared = nil
	h.starts = append(h.starts, s) // shared copies read only the elements before the new one
	for h.starts[0].At < s.At-rateWindow {
		h.starts = h.starts[1:]
	}
}

// Started returns how many units of a type have started in the hour before now.
func (h *History) Started(kind string, now int64) (units int64) {
	for _, s := range h.starts {
		if s.Type == kind && s.At >= now-rateWindow {
			units += s.Units
		}
	}
	return units
}
