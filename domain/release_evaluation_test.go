package domain_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// A simulatedModel answers requests with independent errors and log-normal latencies.
type simulatedModel struct {
	errors     float64
	firstToken time.Duration // median
	perToken   time.Duration // median
	spread     float64       // σ of the logarithms of the latencies
	stalled    float64       // share of the requests without a first token, whose clients leave after 2 s
}

func (m simulatedModel) answer(r *rand.Rand, work float64, arm *domain.ArmSamples) {
	arm.Requests++
	if r.Float64() < m.errors {
		arm.Errors++
		return
	}
	latency := func(median time.Duration) time.Duration {
		return time.Duration(float64(median) * work * math.Exp(m.spread*r.NormFloat64()))
	}
	first := latency(m.firstToken)
	if m.stalled > 0 && r.Float64() < m.stalled {
		arm.FirstToken.Add(2 * time.Second)
		return
	}
	arm.FirstToken.Add(first)
	arm.PerToken.Add(latency(m.perToken))
}

// simulateRelease simulates a release, which is evaluated after each request to the candidate. It
// returns its state, and the numbers of requests to the candidate and to both.
func simulateRelease(seed uint64, spec domain.ReleaseSpec, stable, candidate simulatedModel) (state string,
	toCandidate, all int) {
	r := rand.New(rand.NewPCG(seed, 1))
	t := &domain.TrafficSplit{ReleaseSpec: spec.WithDefaults(), State: domain.ReleaseRunning, Since: noon}
	for step := range t.Steps {
		t.Step = step
		var s domain.ReleaseSamples
		for {
			all++
			work := math.Exp(r.NormFloat64() / 3) // of this request
			selected := r.IntN(100) < t.Percent()
			if !selected || t.Mode == domain.ReleaseShadow {
				stable.answer(r, work, &s.Stable)
			}
			if !selected {
				continue
			}
			toCandidate++
			candidate.answer(r, work, &s.Candidate)
			evaluation := t.Evaluate(s, noon)
			if evaluation.Decision == domain.ReleaseFails {
				return domain.ReleaseRolledBackState, toCandidate, all
			}
			if evaluation.Decision == domain.ReleaseStepPassed {
				break
			}
			if s.Candidate.Requests > 20_000 {
				return domain.ReleaseRunning, toCandidate, all
			}
		}
	}
	return domain.ReleasePromotedState, toCandidate, all
}

var simulatedStable = simulatedModel{errors: 0.004, firstToken: 300 * time.Millisecond,
	perToken: 20 * time.Millisecond, spread: 0.2}

// TestGoodReleasesAreNotRolledBack simulates 1,000 releases whose candidate is as good as the
// deployment: at most 1 % of them may be rolled back, and all others must be promoted.
func TestGoodReleasesAreNotRolledBack(t *testing.T) {
	for _, one := range []struct {
		name, mode string
		stable     simulatedModel
	}{
		{"canary", domain.ReleaseCanary, simulatedStable},
		{"shadow", domain.ReleaseShadow, simulatedStable},
		{"many errors", domain.ReleaseCanary, simulatedModel{errors: 0.1, firstToken: 300 * time.Millisecond,
			perToken: 20 * time.Millisecond, spread: 1}},
		{"a tenth of the clients leaves", domain.ReleaseCanary, simulatedModel{errors: 0.004,
			firstToken: 300 * time.Millisecond, perToken: 20 * time.Millisecond, spread: 0.2, stalled: 0.1}},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			counts, requests := map[string]int{}, 0
			const releases = 1000
			for seed := range uint64(releases) {
				state, toCandidate, _ := simulateRelease(seed, domain.ReleaseSpec{Mode: one.mode, Steps: []int{5, 50}},
					one.stable, one.stable)
				counts[state]++
				requests += toCandidate
			}
			back := counts[domain.ReleaseRolledBackState]
			t.Logf("of %d good releases, %d were rolled back (%.1f %%) and %d promoted, after %d requests to the candidate "+
				"on average", releases, back, float64(back)*100/releases, counts[domain.ReleasePromotedState],
				requests/releases)
			require.LessOrEqual(t, back, releases/100)
			require.Zero(t, counts[domain.ReleaseRunning])
		})
	}
}

// TestBadReleasesAreRolledBack simulates 200 releases with each of several faults of the candidate,
// at each percentage. All must be rolled back: at 1, 5 and 25 %, 95 % of them within 100 requests to the
// candidate. At 50 %, the deployment has fewer samples, and half of them must be.
func TestBadReleasesAreRolledBack(t *testing.T) {
	bad := func(change func(*simulatedModel)) simulatedModel {
		m := simulatedStable
		change(&m)
		return m
	}
	faults := []struct {
		name  string
		model simulatedModel
	}{
		{"all requests fail", bad(func(m *simulatedModel) { m.errors = 1 })},
		{"half of the requests fail", bad(func(m *simulatedModel) { m.errors = 0.5 })},
		{"a fifth of the requests fails", bad(func(m *simulatedModel) { m.errors = 0.2 })},
		{"first token 2 times as late", bad(func(m *simulatedModel) { m.firstToken *= 2 })},
		{"2 times the time per token", bad(func(m *simulatedModel) { m.perToken *= 2 })},
		{"no token before clients leave", bad(func(m *simulatedModel) { m.stalled = 1 })},
		{"all latencies 2 times as long", bad(func(m *simulatedModel) {
			m.firstToken *= 2
			m.perToken *= 2
		})},
	}
	for _, mode := range []string{domain.ReleaseCanary, domain.ReleaseShadow} {
		for _, fault := range faults {
			for _, percent := range []int{1, 5, 25, 50} {
				var took []int
				for seed := range uint64(200) {
					state, toCandidate, _ := simulateRelease(seed, domain.ReleaseSpec{Mode: mode, Steps: []int{percent},
						MinSamples: ptr(1000)}, simulatedStable, fault.model)
					require.Equal(t, domain.ReleaseRolledBackState, state)
					took = append(took, toCandidate)
				}
				slices.Sort(took)
				t.Logf("%-6s %2d %%: %-30s rolled back after %3d requests to the candidate (median), %3d (95 %%), "+
					"%3d (maximum)", mode, percent, fault.name, took[len(took)/2], took[len(took)*95/100], took[len(took)-1])
				within := took[len(took)*95/100]
				if percent == 50 {
					within = took[len(took)/2]
				}
				assert.LessOrEqual(t, within, 100)
				assert.LessOrEqual(t, took[len(took)-1], 300)
			}
		}
	}
}

// TestLatencyBinsDoNotWidenTheRule checks for all values of maxLatencyPercent, and medians in all parts
// of a bin, that a candidate keeps the rule if its median is a bin below the maximum, and that it
// never does if its median is a bin above.
func TestLatencyBinsDoNotWidenTheRule(t *testing.T) {
	const bin = 1.0906 // end of a bin, divided by its start
	passes := func(percent int, stable, candidate time.Duration) bool {
		split := &domain.TrafficSplit{ReleaseSpec: domain.ReleaseSpec{MaxLatencyPercent: &percent,
			MinSamples: ptr(10)}.WithDefaults(), State: domain.ReleaseRunning, Since: noon}
		arm := func(latency time.Duration) (a domain.ArmSamples) {
			for range 10 {
				a.Requests++
				a.FirstToken.Add(latency)
			}
			return a
		}
		return split.Evaluate(domain.ReleaseSamples{Stable: arm(stable), Candidate: arm(candidate)},
			noon).Decision == domain.ReleaseStepPassed
	}
	times := func(latency time.Duration, factor float64) time.Duration {
		return time.Duration(float64(latency) * factor)
	}
	for percent := 100; percent <= domain.MaxLatencyPercent; percent++ {
		maximum := float64(percent) / 100
		for part := range 7 {
			stable := 300*time.Millisecond + time.Duration(part)*4*time.Millisecond
			require.False(t, passes(percent, stable, times(stable, maximum*bin)), "%d %% of %s", percent, stable)
			require.True(t, passes(percent, stable, times(stable, max(1, maximum/bin))), "%d %% of %s", percent, stable)
		}
	}
}
