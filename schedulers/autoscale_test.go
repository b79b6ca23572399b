package schedulers_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
	"anneal/projections/live"
	"anneal/schedulers"
)

// historyOf returns a history of samples that ends at noon; the last is the newest.
func historyOf(samples ...live.LoadSample) live.LoadHistory {
	at := noon.Add(-time.Duration(len(samples)) * live.LoadStep)
	for i := range samples {
		samples[i].Start, samples[i].End = at, at.Add(live.LoadStep)
		at = samples[i].End
		if samples[i].InFlight > 0 || samples[i].RequestsPerSecond > 0 {
			samples[i].Slots = max(samples[i].Slots, 1)
		}
	}
	return live.LoadHistory{Steps: samples}
}

// lasting returns a history from pairs of a number of requests in flight and the duration for which
// it lasts. Replicas have 10 slots.
func lasting(spans ...any) live.LoadHistory {
	var samples []live.LoadSample
	asked := time.Time{}
	total := time.Duration(0)
	for i := 0; i < len(spans); i += 2 {
		total += spans[i+1].(time.Duration)
	}
	for i := 0; i < len(spans); i += 2 {
		inFlight, d := spans[i].(int), spans[i+1].(time.Duration)
		for range d / live.LoadStep {
			samples = append(samples, live.LoadSample{InFlight: float64(inFlight), Slots: 10})
			if inFlight > 0 {
				asked = noon.Add(-total + d)
			}
		}
		total -= d
	}
	h := historyOf(samples...)
	h.LastRequest = asked
	return h
}

func TestScale(t *testing.T) {
	spec := func(minimum, maximum int, policy *domain.AutoscalingPolicy) domain.Scaling {
		return domain.DeploymentSpec{MinReplicaCount: minimum, MaxReplicaCount: &maximum,
			AutoscalingPolicy: policy}.Scaling()
	}
	plain := spec(1, 5, nil)
	sleepy := spec(0, 5, nil)
	targets := func(of map[string]float64) domain.Scaling {
		return spec(1, 9, &domain.AutoscalingPolicy{LoadTargets: of})
	}
	rates := func(s live.LoadSample) live.LoadHistory {
		s.Slots = 10
		var samples []live.LoadSample
		for range 121 {
			samples = append(samples, s)
		}
		return historyOf(samples...)
	}
	const (
		sec = time.Second
		min = time.Minute
	)
	for _, line := range []struct {
		name    string
		policy  domain.Scaling
		current int
		held    time.Duration // time since heldFrom; 0 means longer than any window
		load    live.LoadHistory
		want    int
		reason  string
	}{
		{name: "no samples", policy: plain, current: 3, want: 3},
		{name: "scale up after the window", policy: plain, current: 1, load: lasting(0, 5*min, 17, 30*sec), want: 3,
			reason: "requests in flight 17 (target 8 per replica), minimum of the last 30s"},
		{name: "no scale-up before the end of the window", policy: plain, current: 1,
			load: lasting(0, 5*min, 17, 25*sec), want: 1},
		{name: "scale up to the minimum need in the window", policy: plain, current: 1, load: lasting(9, 25*sec, 33, 5*sec),
			want: 2},
		{name: "no scale-up above Max", policy: plain, current: 4, load: lasting(100, 30*sec), want: 5},
		{name: "no scale-up with a dip in the window", policy: plain, current: 1,
			load: lasting(17, 10*sec, 2, 5*sec, 17, 20*sec), want: 1},
		{name: "a load that equals the target", policy: plain, current: 2, load: lasting(16, min), want: 2},
		{name: "no scale-up with an incomplete window", policy: plain, current: 1, load: lasting(17, 20*sec), want: 1},
		{name: "a scale-up window of 0", policy: spec(1, 5, &domain.AutoscalingPolicy{ScaleUpWindow: "0s"}), current: 1,
			load: lasting(0, min, 17, 5*sec), want: 3},
		{name: "scale down after the window", policy: plain, current: 4, load: lasting(40, 5*min, 9, 10*min), want: 2,
			reason: "requests in flight 9 (target 8 per replica), maximum of the last 600s"},
		{name: "no scale-down before the end of the window", policy: plain, current: 4,
			load: lasting(40, 5*min, 9, 595*sec), want: 4},
		{name: "no scale-down with a higher load in the window", policy: plain, current: 4,
			load: lasting(9, 9*min, 30, 5*sec, 9, 55*sec), want: 4},
		{name: "no scale-down with an incomplete window", policy: plain, current: 4, load: lasting(0, 9*min), want: 4},
		{name: "no scale-down below Min", policy: plain, current: 4, load: lasting(0, 11*min), want: 1,
			reason: "requests in flight 0 (target 8 per replica), maximum of the last 600s"},
		{name: "a manual scale-up lasts for the scale-down window", policy: plain, current: 4, held: 9 * min,
			load: lasting(0, 20*min), want: 4},
		{name: "a manual scale-up ends after the scale-down window", policy: plain, current: 4, held: 10 * min,
			load: lasting(0, 20*min), want: 1},
		{name: "a manual scale-down lasts for the scale-up window", policy: plain, current: 1, held: 20 * sec,
			load: lasting(17, 20*min), want: 1},
		{name: "one replica while idle in the zero window", policy: sleepy, current: 3,
			load: lasting(1, min, 0, 59*min), want: 1},
		{name: "scale to zero after the window", policy: sleepy, current: 3, load: lasting(1, min, 0, 60*min), want: 0,
			reason: "no requests in the last 3600s"},
		{name: "scale to zero after a short window", policy: spec(0, 5,
			&domain.AutoscalingPolicy{ScaleToZeroWindow: "300s"}), current: 1, load: lasting(1, min, 0, 5*min),
			want: 0},
		{name: "no scale to zero with Min 1", policy: plain, current: 1, load: lasting(0, 61*min), want: 1},
		{name: "no scale to zero soon after waking", policy: sleepy, current: 1, held: 59 * min, load: lasting(0, 61*min),
			want: 1},
		{name: "no scale to zero with a gap in the samples", policy: sleepy, current: 1,
			load: gap(lasting(0, 61*min)), want: 1},
		{name: "no scale-up from zero", policy: sleepy, current: 0, load: lasting(50, 61*min), want: 0},
		{name: "below Min", policy: spec(2, 5, nil), current: 0, want: 2,
			reason: "the limits are 2 to 5 replicas"},
		{name: "above Max", policy: spec(0, 5, nil), current: 7, want: 5},
		{name: "no scale-down with old samples", policy: plain, current: 4, load: late(lasting(0, 11*min)), want: 4},
		{name: "tokens", policy: targets(map[string]float64{domain.TokensTarget: 500}), current: 1,
			load: rates(live.LoadSample{TokensPerSecond: 812, InFlight: 99}), want: 2,
			reason: "tokens_generated_per_second 812 (target 500 per replica), minimum of the last 30s"},
		{name: "prompt tokens", policy: targets(map[string]float64{domain.PromptTokensTarget: 100}), current: 1,
			load: rates(live.LoadSample{PromptTokensPerSecond: 350}), want: 4},
		{name: "requests", policy: targets(map[string]float64{domain.RequestsTarget: 2.5}), current: 1,
			load: rates(live.LoadSample{RequestsPerSecond: 7.6}), want: 4},
		{name: "concurrent requests", policy: targets(map[string]float64{domain.ConcurrentTarget: 3}), current: 1,
			load: rates(live.LoadSample{InFlight: 7}), want: 3},
		{name: "more requests than slots", policy: plain, current: 1, load: peak(lasting(0, 5*min), 25, 0), want: 3,
			reason: "25 requests at once (a replica serves 10)"},
		{name: "slots of starting replicas count", policy: plain, current: 3, load: peak(lasting(0, 5*min), 25, 0), want: 3},
		{name: "requests that complete within a second", policy: plain, current: 1, load: peak(lasting(0, 5*min), 25, 15),
			want: 1},
		{name: "a peak without a history", policy: plain, current: 1, load: peak(lasting(0, 5*sec), 25, 0), want: 3},
		{name: "an old peak", policy: plain, current: 1, load: late(peak(lasting(0, 5*min), 25, 0)), want: 1},
		{name: "a peak soon after a manual scale", policy: plain, current: 1, held: 20 * sec,
			load: peak(lasting(0, 5*min), 25, 0), want: 1},
		{name: "the load needs more than the peak", policy: plain, current: 1, load: peak(lasting(17, 5*min), 19, 0),
			want: 3},
		{name: "no scale-down with a peak in the window", policy: plain, current: 4,
			load: peaked(lasting(0, 11*min), 9*min, 40), want: 4},
		{name: "scale-down with a peak before the window", policy: plain, current: 4,
			load: peaked(lasting(0, 20*min), 11*min, 40), want: 1},
		{name: "half of the capacity as target", policy: targets(map[string]float64{domain.CapacityTarget: 0.5}), current: 1,
			load: rates(live.LoadSample{InFlight: 11}), want: 3},
		{name: "the highest of several targets", policy: targets(map[string]float64{domain.CapacityTarget: 1,
			domain.RequestsTarget: 1, domain.TokensTarget: 100}), current: 1,
			load: rates(live.LoadSample{InFlight: 31, RequestsPerSecond: 6.5,
				TokensPerSecond: 200}), want: 7, reason: "requests_per_second 6.5 (target 1 per replica), " +
				"minimum of the last 30s"},
	} {
		t.Run(line.name, func(t *testing.T) {
			held := noon.Add(-100 * time.Hour)
			if line.held > 0 {
				held = noon.Add(-line.held)
			}
			want := schedulers.Scale(line.policy, line.current, held, line.load, noon)
			require.Equal(t, line.want, want.Replicas, want.Reason)
			if line.reason != "" {
				require.Equal(t, line.reason, want.Reason)
			}
			require.Equal(t, want.Replicas != line.current, want.Reason != "", "a change has a reason")
		})
	}
}

// gap removes the samples of two minutes from the middle of a history.
func gap(h live.LoadHistory) live.LoadHistory {
	n := len(h.Steps) / 2
	h.Steps = append(h.Steps[:n:n], h.Steps[n+24:]...)
	return h
}

// peak adds an unfinished step with a peak and a rate of completed requests to a history.
func peak(h live.LoadHistory, requests, completed float64) live.LoadHistory {
	h.Latest = live.LoadSample{Start: noon.Add(-time.Second), End: noon, Peak: requests, CompletedPerSecond: completed,
		Slots: 10}
	return h
}

// peaked sets the peak of the sample that began the given time ago.
func peaked(h live.LoadHistory, ago time.Duration, requests float64) live.LoadHistory {
	h.Steps[len(h.Steps)-int(ago/live.LoadStep)].Peak = requests
	return h
}

// late removes the samples of the last two minutes from a history.
func late(h live.LoadHistory) live.LoadHistory {
	h.Latest.End = h.Latest.End.Add(-2 * time.Minute)
	h.Steps = h.Steps[:len(h.Steps)-24]
	return h
}

func drawHistory(t *rapid.T) live.LoadHistory {
	n := rapid.SampledFrom([]int{0, 1, 5, 6, 7, 8, 60, 121, 200, 800}).Draw(t, "samples")
	var samples []live.LoadSample
	level := 0.0
	for i := range n {
		if i == 0 || rapid.IntRange(0, 9).Draw(t, "turn") == 0 {
			level = rapid.Float64Range(0, 60).Draw(t, "level")
		}
		samples = append(samples, live.LoadSample{InFlight: level, Slots: 4, RequestsPerSecond: level / 2,
			TokensPerSecond: level * 9, PromptTokensPerSecond: level, Peak: level})
	}
	h := historyOf(samples...)
	if rapid.Bool().Draw(t, "latest") {
		h.Latest = live.LoadSample{End: noon, Peak: level, Slots: 4}
	}
	if n > 0 {
		h.LastRequest = noon.Add(-time.Duration(rapid.IntRange(0, 5000).Draw(t, "asked")) * time.Second)
	}
	return h
}

func drawScaling(t *rapid.T) domain.Scaling {
	window := func(name string) time.Duration {
		return time.Duration(rapid.SampledFrom([]int{0, 5, 30, 300, 600, 3600}).Draw(t, name)) * time.Second
	}
	s := domain.Scaling{Min: rapid.IntRange(0, 4).Draw(t, "min"), Up: window("up"), Down: window("down"),
		Zero: max(window("zero"), time.Second), Targets: map[string]float64{}}
	s.Max = s.Min + rapid.IntRange(0, 8).Draw(t, "room")
	for _, target := range domain.LoadTargets {
		if rapid.Bool().Draw(t, target) {
			s.Targets[target] = rapid.Float64Range(0.1, 1).Draw(t, "of")
		}
	}
	return s
}

func TestScaleKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy, load := drawScaling(t), drawHistory(t)
		current := rapid.IntRange(0, 14).Draw(t, "current")
		held := noon.Add(-time.Duration(rapid.IntRange(0, 7200).Draw(t, "held")) * time.Second)
		want := schedulers.Scale(policy, current, held, load, noon)
		if want.Replicas < policy.Min || want.Replicas > policy.Max {
			t.Fatalf("%d is not from %d to %d", want.Replicas, policy.Min, policy.Max)
		}
		if want.Replicas == 0 && current > 0 && policy.Max > 0 && load.LastRequest.After(noon.Add(-policy.Zero)) {
			t.Fatalf("scaled to zero %s after a request", noon.Sub(load.LastRequest))
		}
		if (want.Replicas != current) != (want.Reason != "") {
			t.Fatalf("scaled from %d to %d with the reason %q", current, want.Replicas, want.Reason)
		}

		more := live.LoadHistory{LastRequest: load.LastRequest, Latest: load.Latest}
		factor := rapid.Float64Range(1, 3).Draw(t, "factor")
		more.Latest.Peak *= factor
		for _, s := range load.Steps {
			s.Peak *= factor
			s.InFlight, s.RequestsPerSecond, s.TokensPerSecond = s.InFlight*factor, s.RequestsPerSecond*factor,
				s.TokensPerSecond*factor
			more.Steps = append(more.Steps, s)
		}
		if busier := schedulers.Scale(policy, current, held, more, noon); busier.Replicas < want.Replicas {
			t.Fatalf("%d replicas, but only %d for %v times the load", want.Replicas, busier.Replicas, factor)
		}
	})
}

// TestScaleDoesNotOscillate checks that Scale changes the replica count at most once under a
// constant load.
func TestScaleDoesNotOscillate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := drawScaling(t)
		level := rapid.Float64Range(0.01, 40).Draw(t, "level")
		current := max(1, rapid.IntRange(policy.Min, max(1, policy.Max)).Draw(t, "current"))
		if policy.Max == 0 {
			return
		}
		samples := make([]live.LoadSample, 721)
		for i := range samples {
			samples[i] = live.LoadSample{InFlight: level, Slots: 4, RequestsPerSecond: level,
				TokensPerSecond: level, PromptTokensPerSecond: level, Peak: math.Ceil(level)}
		}
		load := historyOf(samples...)
		load.Latest = live.LoadSample{End: noon, Peak: math.Ceil(level), Slots: 4}
		load.LastRequest = noon
		first := schedulers.Scale(policy, current, time.Time{}, load, noon).Replicas
		for range 5 {
			if again := schedulers.Scale(policy, first, time.Time{}, load, noon); again.Replicas != first {
				t.Fatalf("scaled from %d to %d, and then to %d: %s", current, first, again.Replicas, again.Reason)
			}
		}
		if need := level / 4 / policy.Targets[domain.CapacityTarget]; len(policy.Targets) == 1 && !math.IsInf(need,
			0) && policy.Targets[domain.CapacityTarget] > 0 &&
			float64(first) < min(math.Ceil(need-1e-6), float64(policy.Max)) {
			t.Fatalf("%d replicas for a need of %v", first, need)
		}
	})
}

func TestAutoscalePlans(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(node("n1", domain.PoolInference, 4, nil))
	s.given(deployment("busy", 1, 4, nil), deployment("fixed", 1, 1, nil), deployment("asleep", 0, 4, nil))
	for range 3 {
		s.execute(schedulers.Replicas{})
		for _, id := range []string{"busy", "fixed"} {
			s.do(onDeployment(id, domain.AdvanceReplica{ID: "r1", Node: nodeName("n1"), State: domain.ReplicaReady}))
		}
	}
	for at := time.Duration(0); at <= 40*time.Second; at += 2 * time.Second {
		for _, id := range []string{"busy", "fixed"} {
			s.world.Live().Load(deploymentName(id), "r1", live.ReplicaLoad{Ready: true, Active: 8, Queued: 4,
				Slots: 8, Time: s.now.Add(at)})
		}
	}
	s.advance(41 * time.Second)
	plan := s.plan(schedulers.Autoscale{})
	require.Len(t, plan.Steps, 1)
	s.comment("a user scales first, so the plan is refused")
	s.given(onDeployment("busy", domain.ScaleDeployment{Replicas: 4, Reason: "scaled by its user"}))
	row, ok := s.world.View().Deployments.Get(deploymentName("busy"))
	require.True(t, ok)
	_, err := plan.Steps[0].Commit.Decide(row.State, s.now)
	require.ErrorContains(t, err, "but the deployment was scaled to 4 in between")
	s.plan(schedulers.Autoscale{})
	require.True(t, strings.Contains(s.transcript.String(), "requests in flight 12 (target 6.4 per replica)"))
	s.compare("autoscale")
}

// TestAutoscaleKeepsTheQuota checks that Autoscale does not exceed the account's quota of
// accelerators.
func TestAutoscaleKeepsTheQuota(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.do(domain.Intend(domain.Quotas, domain.NewName("acme", domain.Quotas.Collection, domain.QuotaAccelerators),
		domain.SetQuota{MaxValue: 7}))
	for _, id := range []string{"d1", "d2"} {
		s.do(deployment(id, 0, 9, func(d *domain.DeploymentSpec) {
			d.AcceleratorType,
				d.AcceleratorCount = "VENDOR_A_L4_24GB", 1
		}))
		s.do(onDeployment(id, domain.MarkDeploymentReady{Generation: 1}))
		s.do(onDeployment(id, domain.WakeDeployment{}))
		for at := time.Duration(0); at <= 40*time.Second; at += 2 * time.Second {
			s.world.Live().Load(deploymentName(id), "r1", live.ReplicaLoad{Ready: true, Active: 8, Queued: 20,
				Slots: 8, Time: s.now.Add(at)})
		}
	}
	s.advance(41 * time.Second)
	s.execute(schedulers.Autoscale{})
	wanted := func(id string) int {
		row, _ := s.world.View().Deployments.Get(deploymentName(id))
		return row.State.DesiredReplicas
	}
	require.Equal(t, []int{5, 2}, []int{wanted("d1"), wanted("d2")},
		"the quota of seven allows five for the first deployment and two for the second")
	require.Empty(t, s.plan(schedulers.Autoscale{}).Steps)
}
