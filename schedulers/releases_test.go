package schedulers_test

import (
	"testing"
	"time"

	"anneal/domain"
	"anneal/projections/live"
	"anneal/schedulers"
)

// TestReleases is the transcript of releases: two steps and a promotion, a bad candidate, a step
// that takes too long, and a deleted candidate.
func TestReleases(t *testing.T) {
	s := newHarness(t)
	s.prerequisites()
	s.given(deployment("d", 0, 1, nil), deployment("e", 0, 1, nil))
	const d, e = domain.Name("accounts/acme/deployments/d"), domain.Name("accounts/acme/deployments/e")
	on := func(command domain.Command[domain.Deployment]) domain.Intent {
		return domain.Intend(domain.Deployments, d, command)
	}
	record := func(stable, candidate, errors int64) {
		row, _ := s.world.View().Deployments.Get(d)
		arm := func(n, errors int64) domain.ArmSamples {
			return domain.ArmSamples{Requests: n, Errors: errors, FirstToken: domain.Latencies{0, n - errors}}
		}
		s.comment("%d requests to the deployment, %d to the candidate, of which %d failed", stable, candidate, errors)
		s.world.Live().RecordRelease("", live.ReleaseStep{Deployment: d, Created: row.CreateVersion,
			Number: row.State.Release.Number, Step: row.State.Release.Step},
			domain.ReleaseSamples{Stable: arm(stable, 0), Candidate: arm(candidate, errors)}, s.now)
	}
	release := func(promotion string) {
		ten := 10
		s.given(on(domain.StartRelease{ReleaseSpec: domain.ReleaseSpec{Candidate: string(e), Steps: []int{10, 50},
			MinSamples: &ten, MaxStepDuration: "3600s", Promotion: promotion}}))
		s.execute(schedulers.Releases{})
	}
	release(domain.PromoteManual)
	record(90, 9, 0)
	s.execute(schedulers.Releases{})
	record(91, 10, 0)
	s.execute(schedulers.Releases{})
	s.execute(schedulers.Releases{})
	record(30, 30, 0)
	s.execute(schedulers.Releases{})
	s.comment("it waits for its promotion, however long that takes")
	s.advance(48 * time.Hour)
	s.execute(schedulers.Releases{})
	record(100, 10, 6)
	s.execute(schedulers.Releases{})

	release("")
	record(20, 20, 0)
	s.execute(schedulers.Releases{})
	record(20, 20, 0)
	s.execute(schedulers.Releases{})
	s.comment("the candidate of a promoted release is deleted")
	s.given(domain.Intend(domain.Deployments, e,
		domain.Command[domain.Deployment](domain.DeleteDeployment{IgnoreChecks: true, Reason: "by its user"})))
	s.execute(schedulers.Releases{})

	s.given(deployment("f", 0, 1, nil))
	ten := 10
	s.given(on(domain.StartRelease{ReleaseSpec: domain.ReleaseSpec{Candidate: "accounts/acme/deployments/f",
		MinSamples: &ten, MaxStepDuration: "3600s"}}))
	record(500, 5, 0)
	s.advance(time.Hour + time.Second)
	s.execute(schedulers.Releases{})
	s.compare("releases")
}
