// Package waits estimates how long jobs and replicas wait for capacity, from the waits of those that
// have started.
package waits

import (
	"slices"

	"github.com/tidwall/btree"

	"anneal/domain"
)

const (
	maxWaits  = 512       // maximum number of waits that a bucket keeps
	minWaits  = 20        // minimum number of waits in a bucket for an estimate; with fewer, a coarser bucket is used
	parts     = 1_000_000 // 100 % in the unit of the levels of quantiles: parts per million
	lowLevel  = 100_000
	highLevel = 900_000
	stretch   = 4 // factor by which the function quantile extrapolates levels above 100 %
	// how far one wait outside of its estimated interval moves the level of a quantile, in parts
	// per million
	adaptation = 1_000
	rateWindow = 3_600 // time for which starts of jobs are kept, in seconds
)

// A History holds the waits of jobs that have started, by their QueueSituation when they began to
// wait, and the starts of jobs in the last hour. It estimates a wait from quantiles of the waits in
// the same situation. It adapts the levels of these quantiles to the observed waits, as adaptive
// conformal inference does (Gibbs and Candès, NeurIPS 2021): otherwise too few waits would be
// within their estimates, because the load changes while jobs wait. Times are seconds since the
// Unix epoch.
type History struct {
	buckets    btree.Map[uint64, *bucket]
	low, high  int64 // levels of the quantiles of the waits that become Low and High of an estimate
	starts     []Start
	shared     *History // last result of Share, which it returns again; nil after a change of the history
	generation uint64   // number of calls of Share that made a copy; a bucket with a lower generation is shared
}

// A Start records when a job started, and how many units of which type it uses. A unit is an
// accelerator or, for a job without accelerators, a CPU core.
type Start struct {
	At    int64  `json:"at"`
	Type  string `json:"type,omitempty"` // accelerator type; "" for jobs without accelerators
	Units int64  `json:"units"`
}

// A bucket holds the last waits in one situation, in a ring buffer.
type bucket struct {
	generation uint64
	last       []int64
	next       int
}

// New returns a History without waits.
func New() *History { return &History{low: lowLevel, high: highLevel} }

// Share returns an immutable copy of the history.
func (h *History) Share() *History {
	if h.shared == nil {
		h.shared = &History{buckets: *h.buckets.Copy(), low: h.low, high: h.high, starts: h.starts}
		h.generation++
	}
	return h.shared
}

// Fork returns a copy of the history that can be changed independently of h.
func (h *History) Fork() *History {
	shared := h.Share()
	return &History{buckets: *shared.buckets.Copy(), low: shared.low, high: shared.high,
		starts: slices.Clone(shared.starts), generation: h.generation}
}

// keys returns the keys of the buckets of a situation, the finest bucket first. A coarser bucket
// ignores some fields of the situation.
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

// key packs a situation into one integer, with coarse as the level of the bucket. Each field of the
// situation is a bit length of at most 64, so it fits into 7 bits.
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

// Estimate returns the estimated wait of a job that begins to wait in a situation; false while the
// history has fewer than domain.MinWaits waits.
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
	estimate, longer := h.EstimateAfter(s, -1)
	return estimate, longer >= domain.MinWaits
}

// EstimateAfter returns the estimated wait of a job that began to wait in a situation, and that has
// waited for age seconds without an estimate, or for longer than its estimate: from the earlier waits
// that were longer than age. longer is their number; if it is less than domain.MinWaits, there is no estimate.
func (h *History) EstimateAfter(s domain.QueueSituation, age int64) (estimate domain.WaitEstimate, longer int) {
	return h.estimateAfter(keys(s), age)
}

// estimateAfter is EstimateAfter for the buckets with these keys, the finest first. It uses the finest
// bucket with minWaits longer waits or, if there is none, the coarsest.
func (h *History) estimateAfter(keys []uint64, age int64) (estimate domain.WaitEstimate, longer int) {
	for i, k := range keys {
		b, ok := h.buckets.Get(k)
		if !ok {
			continue
		}
		var rest []int64
		for _, wait := range b.last {
			if wait > age {
				rest = append(rest, wait)
			}
		}
		if len(rest) >= minWaits || i == len(keys)-1 {
			slices.Sort(rest)
			return interval(rest, max(0, age)), len(rest)
		}
	}
	return domain.WaitEstimate{}, 0
}

// interval returns an interval that has the next wait with a probability of at least 80 % if it and
// the sorted waits are exchangeable: between the kth shortest and the kth longest of n, which have it
// with a probability of 1 - 2k/(n+1). With fewer than 9 waits, it is between low, which is a lower
// bound of all waits, and the longest: n/(n+1). With fewer than domain.MinWaits it returns a zero estimate.
func interval(sorted []int64, low int64) domain.WaitEstimate {
	n := len(sorted)
	if n < domain.MinWaits {
		return domain.WaitEstimate{}
	}
	estimate := domain.WaitEstimate{Low: low, Median: sorted[n/2], High: sorted[n-1]}
	if k := (n + 1) / 10; k > 0 {
		estimate.Low, estimate.High = sorted[k-1], sorted[n-k]
	}
	return estimate
}

// quantile returns the quantile of sorted values at a level, in parts per million. A level below 0
// gives 0. A level above parts, which is 100 %, extrapolates: each further 100 % adds stretch times
// the maximum. Such levels are needed because otherwise too many waits would be outside of their
// estimates.
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

// Observe records the wait, in seconds, of a job that has started. given is the estimate that was
// made when the wait began; nil if there was none. The low level stays at or below the median, and
// the high level at or above it. Otherwise jobs that do not wait, whose waits are never below their
// estimate, would raise the low level above the high level.
func (h *History) Observe(s domain.QueueSituation, given *domain.WaitEstimate, wait int64) {
	h.add(keys(s), wait)
	if given == nil {
		return
	}
	h.low = min(parts/2, adapt(h.low, wait < given.Low, lowLevel))
	h.high = max(parts/2, adapt(h.high, wait <= given.High, highLevel))
}

// add adds a wait to the buckets with these keys.
func (h *History) add(keys []uint64, wait int64) {
	h.shared = nil
	for _, k := range keys {
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
}

// adapt returns the new level of a quantile after a wait, so that over time goal parts per million
// of the waits are below the quantile. below says whether this wait was below it.
func adapt(level int64, below bool, goal int64) int64 {
	if below {
		return max(-4*parts, level-adaptation*(parts-goal)/parts)
	}
	return min(4*parts, level+adaptation*goal/parts)
}

// Start records that a job has started, whether or not it has waited.
func (h *History) Start(s Start) {
	h.shared = nil
	h.starts = append(h.starts, s) // appending is safe, because shared copies read only the earlier elements
	for h.starts[0].At < s.At-rateWindow {
		h.starts = h.starts[1:]
	}
}

// Started returns how many units of an accelerator type were used by the jobs that have started in
// the hour before now.
func (h *History) Started(kind string, now int64) (units int64) {
	for _, s := range h.starts {
		if s.Type == kind && s.At >= now-rateWindow {
			units += s.Units
		}
	}
	return units
}
