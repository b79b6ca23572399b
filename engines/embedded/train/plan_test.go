package train

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func samplesOf(lengths ...int) []*Sample {
	var out []*Sample
	for _, n := range lengths {
		s := &Sample{Tokens: make([]int32, n+1), Scored: make([]bool, n+1)}
		s.Scored[n] = true
		out = append(out, s)
	}
	return out
}

func TestPlanTakesEachSampleOncePerEpoch(t *testing.T) {
	lengths := []int{10, 90, 30, 30, 20, 5, 70, 10, 10, 40, 40}
	for name, tc := range map[string]struct{ tokens, samples, accumulate int }{
		"by tokens":    {100, 1000, 1},
		"by samples":   {1000, 3, 1},
		"by both":      {60, 2, 1},
		"accumulating": {60, 2, 3},
	} {
		t.Run(name, func(t *testing.T) {
			samples := samplesOf(lengths...)
			p := newPlan(samples, 3, tc.tokens, tc.samples, tc.accumulate, 7)
			seen := map[*Sample]int{}
			for step := range p.steps {
				batch := p.batch(step)
				require.NotEmpty(t, batch)
				require.LessOrEqual(t, len(batch), tc.samples*tc.accumulate)
				tokens := 0
				for _, s := range batch {
					seen[s]++
					tokens += s.inputs()
				}
				// A sample that exceeds the limit of a micro-batch forms a micro-batch alone.
				if len(batch) > tc.accumulate {
					require.LessOrEqual(t, tokens, tc.tokens*tc.accumulate)
				}
				if step > 0 {
					require.Greater(t, p.progress(step+1), p.progress(step))
				}
			}
			for _, s := range samples {
				require.Equal(t, 3, seen[s])
			}
			require.Equal(t, 3.0, p.progress(p.steps))
			require.NotEqual(t, p.batches(0), p.batches(1), "each epoch is shuffled separately")
		})
	}
}

func TestHoldOut(t *testing.T) {
	for _, tc := range []struct{ rows, held int }{{2, 1}, {19, 1}, {200, 20}, {100_000, 256}} {
		samples := make([]*Sample, tc.rows)
		for i := range samples {
			samples[i] = &Sample{}
		}
		train, held := holdOut(samples, 3)
		require.Len(t, held, tc.held)
		require.Len(t, train, tc.rows-tc.held)
	}
}

func TestRate(t *testing.T) {
	const peak = 0.5
	require.Equal(t, peak, rateAt(1, 10, 0, peak), "without warmup the first step is at the peak")
	require.Equal(t, peak/4, rateAt(1, 10, 4, peak))
	require.Equal(t, peak, rateAt(4, 10, 4, peak))
	for step := 5; step < 10; step++ {
		require.Less(t, rateAt(step+1, 10, 4, peak), rateAt(step, 10, 4, peak))
		require.Positive(t, rateAt(step+1, 10, 4, peak))
	}
	require.Equal(t, peak, rateAt(50, 10, 50, peak), "warmup for the whole training ends at the peak")
}
