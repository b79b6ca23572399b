package waits_test

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/projections/waits"
)

// TestEstimates checks that intervals cover 80 % of waits of a distribution, also after it changes.
func TestEstimates(t *testing.T) {
	random, h := rand.New(rand.NewPCG(3, 4)), waits.New()
	_, ok := h.Estimate(domain.QueueSituation{})
	require.False(t, ok, "there is no history")
	covered, total := 0, 0
	for i := range 20_000 {
		wait := random.Int64N(1000)
		if i > 10_000 {
			wait *= 7
		}
		s := domain.QueueSituation{Size: i % 3}
		interval, ok := h.Estimate(s)
		if !ok {
			h.Observe(s, nil, wait)
			continue
		}
		total++
		if interval.Low <= wait && wait <= interval.High {
			covered++
		}
		h.Observe(s, &interval, wait)
	}
	require.InDelta(t, 0.8, float64(covered)/float64(total), 0.02)
}

// TestEstimatesAreOrdered checks that Low ≤ Median ≤ High still holds after many jobs that did not wait,
// whose waits are never below the interval.
func TestEstimatesAreOrdered(t *testing.T) {
	random, h := rand.New(rand.NewPCG(7, 8)), waits.New()
	for i := range 40_000 {
		wait := int64(0)
		if i > 20_000 {
			wait = random.Int64N(1000)
		}
		given, ok := h.Estimate(domain.QueueSituation{})
		if !ok {
			h.Observe(domain.QueueSituation{}, nil, wait)
			continue
		}
		require.LessOrEqual(t, given.Low, given.Median, "wait %d", i)
		require.LessOrEqual(t, given.Median, given.High, "wait %d", i)
		h.Observe(domain.QueueSituation{}, &given, wait)
	}
}

// lines returns the lines of a history as JSON.
func lines(t *testing.T, h *waits.History) (all []string) {
	require.NoError(t, h.Lines(func(l waits.Line) error {
		text, err := json.Marshal(l)
		all = append(all, string(text))
		return err
	}))
	return all
}

// TestSharedHistoryStays checks that a shared copy stays as it is while the history changes, and that
// a history restored from lines equals the original, also after the same changes to both.
func TestSharedHistoryStays(t *testing.T) {
	random, h := rand.New(rand.NewPCG(5, 6)), waits.New()
	at := int64(1_000_000)
	observe := func(histories ...*waits.History) {
		at += random.Int64N(60)
		s := domain.QueueSituation{Size: random.IntN(3), Load: random.IntN(4), Age: random.IntN(2),
			Again: random.IntN(2) == 0}
		wait := random.Int64N(1000)
		for _, h := range histories {
			h.Start(waits.Start{At: at, Type: "GPU", Units: 1 + wait%4})
			if given, ok := h.Estimate(s); ok {
				h.Observe(s, &given, wait)
			} else {
				h.Observe(s, nil, wait)
			}
		}
	}
	for range 3000 {
		observe(h)
	}
	shared := h.Share()
	require.Same(t, shared, h.Share(), "nothing has changed")
	before := lines(t, shared)
	restored := waits.New()
	for _, line := range before {
		var l waits.Line
		require.NoError(t, json.Unmarshal([]byte(line), &l))
		require.NoError(t, restored.Restore(l))
	}
	require.Equal(t, before, lines(t, restored))
	for range 2000 {
		observe(h, restored)
	}
	require.Equal(t, before, lines(t, shared), "the shared copy has changed")
	require.NotEqual(t, before, lines(t, h))
	require.Equal(t, lines(t, h), lines(t, restored))
	require.Error(t, restored.Restore(waits.Line{Bucket: new(uint64), Waits: []int64{1}, Next: 1}))
}

// TestStarted checks that the starts of one type in the last hour are counted.
func TestStarted(t *testing.T) {
	h := waits.New()
	for _, s := range []waits.Start{{At: 100, Units: 2}, {At: 200, Units: 4}, {At: 3750, Type: "GPU", Units: 8}} {
		h.Start(s)
	}
	require.EqualValues(t, 4, h.Started("", 3750), "the first start is older than an hour")
	require.EqualValues(t, 8, h.Started("GPU", 3750))
	require.Zero(t, h.Started("", 3801))
}

// TestEstimatesOfFewWaits checks, for each number of earlier waits, that at least 80 % of the next
// waits are inside of their interval, whatever their distribution, and that there is no estimate from
// fewer than MinWaits waits.
func TestEstimatesOfFewWaits(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	draws := map[string]func() int64{
		"uniform":     func() int64 { return 1 + random.Int64N(1_000_000) },
		"exponential": func() int64 { return 1 + int64(1e6*random.ExpFloat64()) },
		"heavy tail":  func() int64 { return int64(1e6 / (random.Float64() + 1e-9)) },
	}
	for n := range 30 {
		for name, draw := range draws {
			const rounds = 4000
			covered := 0
			for range rounds {
				h := waits.New()
				for range n {
					h.Observe(domain.QueueSituation{}, nil, draw())
				}
				interval, ok := h.Estimate(domain.QueueSituation{})
				require.Equal(t, n >= domain.MinWaits, ok, "%d waits", n)
				if !ok {
					break
				}
				require.LessOrEqual(t, interval.Low, interval.Median)
				require.LessOrEqual(t, interval.Median, interval.High)
				if wait := draw(); interval.Low <= wait && wait <= interval.High {
					covered++
				}
			}
			if share := float64(covered) / rounds; n >= domain.MinWaits && n < 20 {
				require.Greater(t, share, 0.77, "%d waits, %s", n, name)
				require.Less(t, share, 0.93, "%d waits, %s", n, name)
			}
		}
	}
}

// TestEstimatesOfWaitsThatLast checks that the estimate for a job or replica that has waited for some
// time already is made from longer waits, that at least 80 % of them are inside of it, and that those
// of replicas within and above a minimum are apart.
func TestEstimatesOfWaitsThatLast(t *testing.T) {
	h := waits.New()
	for i := range int64(60) {
		h.Observe(domain.QueueSituation{}, nil, 10*(i+1))
		h.ObserveReplica(true, 1, 10*(i+1))
	}
	for _, age := range []int64{-1, 0, 100, 300, 550, 560, 570, 600} {
		e, longer := h.EstimateAfter(domain.QueueSituation{}, age)
		want := int64(60)
		if age > 0 {
			want = 60 - age/10
		}
		require.EqualValues(t, want, longer, "age %d", age)
		inside := 0
		for i := range int64(60) {
			if wait := 10 * (i + 1); wait > age && e.Low <= wait && wait <= e.High {
				inside++
			}
		}
		if longer < domain.MinWaits {
			require.Zero(t, e)
			continue
		}
		require.GreaterOrEqual(t, 10*inside, 8*longer, "age %d: %+v", age, e)
		require.GreaterOrEqual(t, e.Low, age, "it has not started yet")
		replica, ofReplicas := h.EstimateReplica(true, 1, age)
		require.Equal(t, e, replica)
		require.Equal(t, longer, ofReplicas)
	}
	_, longer := h.EstimateReplica(false, 1, 0)
	require.Zero(t, longer)
	h.ObserveReplica(false, 1, waits.MinReplicaWait-1)
	_, longer = h.EstimateReplica(false, 1, 0)
	require.Zero(t, longer, "it was placed as soon as possible")
	other, longer := h.EstimateReplica(true, 4, 0)
	require.Equal(t, 60, longer, "replicas of all sizes, while there are few of this size")
	require.EqualValues(t, 310, other.Median)
}
