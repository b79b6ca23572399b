package domain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestLatencyBins(t *testing.T) {
	us := time.Microsecond
	for latency, bin := range map[time.Duration]int{-us: 0, 0: 0, 63 * us: 0, 64 * us: 1, 69 * us: 1, 70 * us: 2,
		127 * us: 8, 128 * us: 9, 256 * us: 17, time.Hour: domain.LatencyBins - 1} {
		require.Equal(t, bin, domain.LatencyBin(latency), latency)
	}
	for latency, before := 64*us, 0; latency < 200*time.Second; latency += latency/50 + 1 {
		bin := domain.LatencyBin(latency)
		require.GreaterOrEqual(t, bin, before)
		require.LessOrEqual(t, bin, before+1, "no bin is left out")
		before = bin
		var s domain.ArmSamples
		s.Requests = 1
		s.FirstToken.Add(latency)
		shown := time.Duration(domain.ReleaseSamples{Stable: s}.Figures().Stable.FirstTokenP50) * us
		if bin < domain.LatencyBins-1 {
			require.LessOrEqual(t, shown, latency)
			require.Greater(t, float64(shown), float64(latency)*0.9)
		}
	}
}

// TestSamplesOfReleases checks the sums of samples, and that impossible samples are recognized.
func TestSamplesOfReleases(t *testing.T) {
	a := domain.ReleaseSamples{Stable: domain.ArmSamples{Requests: 3, Errors: 1, FirstToken: domain.Latencies{0, 2}}}
	b := domain.ReleaseSamples{Stable: domain.ArmSamples{Requests: 2, FirstToken: domain.Latencies{1, 0, 1}},
		Candidate: domain.ArmSamples{Requests: 4, PerToken: domain.Latencies{4}}, Failed: "slow"}
	sum := a.Plus(b)
	require.Equal(t, domain.ReleaseSamples{Stable: domain.ArmSamples{Requests: 5, Errors: 1,
		FirstToken: domain.Latencies{1, 2, 1}, PerToken: domain.Latencies{}},
		Candidate: domain.ArmSamples{Requests: 4, FirstToken: domain.Latencies{}, PerToken: domain.Latencies{4}},
		Failed:    "slow"}, sum)
	require.Equal(t, domain.Latencies{0, 2}, a.Stable.FirstToken, "Plus changes no samples")
	require.True(t, sum.Valid())
	for _, bad := range []domain.ArmSamples{{Requests: -1}, {Requests: 1, Errors: 2}, {Errors: -1}, {Requests: 1 << 60},
		{Requests: 1, FirstToken: domain.Latencies{2}}, {Requests: 1, PerToken: domain.Latencies{-1, 1}},
		{Requests: 1, PerToken: make(domain.Latencies, domain.LatencyBins+1)}} {
		require.False(t, domain.ReleaseSamples{Candidate: bad}.Valid(), "%+v", bad)
	}
}

func TestReleaseCommands(t *testing.T) {
	created := domain.DeploymentCreated{Time: noon,
		DeploymentSpec: domain.DeploymentSpec{BaseModel: "accounts/a/models/m"}}
	spec := domain.ReleaseSpec{Candidate: "accounts/a/deployments/e", Steps: []int{5, 50}, Promotion: domain.PromoteManual}
	started := domain.ReleaseStarted{ReleaseSpec: spec.WithDefaults(), Number: 1, CreatedBy: "k", Time: noon}
	advanced := func(step int) domain.ReleaseAdvanced {
		return domain.ReleaseAdvanced{Number: 1, Step: step, Reason: "passed", Time: noon}
	}
	state := func(events ...domain.Event[domain.Deployment]) (d domain.Deployment) {
		for _, e := range append([]domain.Event[domain.Deployment]{created}, events...) {
			e.Evolve(&d)
		}
		return d
	}
	decide := func(d domain.Deployment, c domain.Command[domain.Deployment]) (domain.Event[domain.Deployment], string) {
		event, err := c.Decide(d, noon)
		if err == nil {
			return event, ""
		}
		return event, err.Error()
	}
	running := state(started)
	event, fault := decide(running, domain.StartRelease{ReleaseSpec: spec, CreatedBy: "other"})
	require.Nil(t, event, "the same release is running")
	require.Empty(t, fault)
	_, fault = decide(running, domain.StartRelease{ReleaseSpec: domain.ReleaseSpec{Candidate: spec.Candidate}})
	require.Contains(t, fault, "promote it or roll it back first")
	_, fault = decide(running, domain.AdvanceRelease{Number: 1, Step: 1, Reason: "passed"})
	require.Contains(t, fault, "step 1 has begun")
	_, fault = decide(running, domain.AdvanceRelease{Number: 2, Step: 0, Reason: "passed"})
	require.Contains(t, fault, "replaced by release 1")

	waiting := state(started, advanced(1), advanced(2))
	require.Equal(t, domain.ReleaseWaiting, waiting.Release.State)
	require.Equal(t, 50, waiting.Release.Percent())
	require.Equal(t, 5, running.Release.Percent(), "an event changes no earlier state")
	event, fault = decide(waiting, domain.AdvanceRelease{Number: 1, Step: 1, Reason: "passed"})
	require.Nil(t, event)
	require.Empty(t, fault)
	_, fault = decide(waiting, domain.AdvanceRelease{Number: 1, Step: 2, Reason: "passed"})
	require.NotEmpty(t, fault)

	promoted := state(started, domain.ReleasePromoted{Number: 1, Time: noon})
	require.Equal(t, 100, promoted.Release.Percent())
	_, fault = decide(promoted, domain.StartRelease{ReleaseSpec: spec})
	require.Contains(t, fault, "release 1 has moved all requests to accounts/a/deployments/e: start the release on that "+
		"deployment, or roll this one back first")
	back := state(started, domain.ReleasePromoted{Number: 1, Time: noon}, domain.ReleaseRolledBack{Number: 1, Time: noon})
	for _, d := range []domain.Deployment{running, waiting, promoted} {
		require.True(t, d.Release.Active())
		_, fault = decide(d, domain.DeleteDeployment{})
		require.Contains(t, fault, "release 1 of the deployment to accounts/a/deployments/e is "+d.Release.State)
		require.Contains(t, fault, "ignoreChecks")
		event, fault = decide(d, domain.DeleteDeployment{IgnoreChecks: true})
		require.Empty(t, fault)
		require.IsType(t, domain.DeploymentDeleting{}, event)
	}
	for _, d := range []domain.Deployment{state(), back} {
		_, fault = decide(d, domain.DeleteDeployment{})
		require.NotContains(t, fault, "release")
	}
	require.False(t, back.Release.Active())
	_, fault = decide(back, domain.PromoteRelease{})
	require.Contains(t, fault, "ROLLED_BACK")
	event, fault = decide(back, domain.StartRelease{ReleaseSpec: spec})
	require.Empty(t, fault)
	require.Equal(t, 2, event.(domain.ReleaseStarted).Number)
	_, fault = decide(state(), domain.RollBackRelease{})
	require.Contains(t, fault, "has no release")
}

// TestFailedSamplesEndARelease checks that an evaluation of a gateway holds, whatever samples follow.
func TestFailedSamplesEndARelease(t *testing.T) {
	d := domain.Deployment{State: domain.DeploymentReadyState}
	domain.ReleaseStarted{ReleaseSpec: domain.ReleaseSpec{Candidate: "accounts/a/deployments/e"}.WithDefaults(),
		Time: noon}.Evolve(&d)
	arm := domain.ArmSamples{Requests: 1000}
	good := domain.ReleaseSamples{Stable: arm, Candidate: arm}
	require.Equal(t, domain.ReleaseStepPassed, d.Release.Evaluate(good, noon).Decision)
	good.Failed = "4 of 4 requests failed"
	require.Equal(t, domain.ReleaseEvaluation{Decision: domain.ReleaseFails, Reason: good.Failed},
		d.Release.Evaluate(good, noon))
}
