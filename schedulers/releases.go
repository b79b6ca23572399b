package schedulers

import (
	"fmt"
	"time"

	"anneal/domain"
	"anneal/projections"
	"anneal/projections/live"
)

// Releases moves the releases of deployments: it begins the next step, promotes, or rolls back, by
// what the gateways have counted (see domain.TrafficSplit.Evaluate). It also rolls back a release
// whose candidate, or whose deployment, is no longer live.
type Releases struct{}

// Name implements Scheduler.
func (Releases) Name() string { return "releases" }

// MinRest implements PacedScheduler.
func (Releases) MinRest() time.Duration { return pacedRest }

// releaseInterval is the time between two decisions while no event is recorded.
const releaseInterval = 250 * time.Millisecond

// Plan implements Scheduler.
func (Releases) Plan(v *projections.View, now time.Time) Plan {
	var plan Plan
	for row := range v.Deployments.All() {
		t := row.State.Release
		if !t.Active() {
			continue
		}
		samples := v.Live.Release(live.ReleaseStep{Deployment: row.Name, Created: row.CreateVersion, Number: t.Number,
			Step: t.Step})
		if command := releaseCommand(v, row, samples, now); command != nil {
			plan.add(domain.Intend(domain.Deployments, row.Name, command).At(row.Version))
		} else if t.Splits() {
			plan.planAgainAt(now.Add(releaseInterval))
		}
	}
	return plan
}

// releaseCommand returns the next command for the active release of a deployment; nil if there is
// none now.
func releaseCommand(v *projections.View, row *projections.Row[domain.Deployment], samples domain.ReleaseSamples,
	now time.Time) domain.Command[domain.Deployment] {
	t, figures := row.State.Release, samples.Figures()
	back := func(format string, args ...any) domain.Command[domain.Deployment] {
		return domain.RollBackRelease{ReleaseFigures: figures, Number: t.Number, Reason: fmt.Sprintf(format, args...)}
	}
	candidate, ok := v.Deployments.Get(t.To())
	switch {
	case !row.State.Live():
		return back("the deployment is %s", row.State.State)
	case !ok:
		return back("the candidate was deleted")
	case !candidate.State.Live():
		return back("the candidate is %s", candidate.State.State)
	case !t.Splits():
		return nil
	}
	switch evaluation := t.Evaluate(samples, now); evaluation.Decision {
	case domain.ReleaseFails:
		return back("%s", evaluation.Reason)
	case domain.ReleaseStepPassed:
		if t.Step == len(t.Steps)-1 && t.Promotion == domain.PromoteAutomatic {
			return domain.PromoteRelease{ReleaseFigures: figures, Number: t.Number, Reason: evaluation.Reason}
		}
		return domain.AdvanceRelease{ReleaseFigures: figures, Number: t.Number, Step: t.Step, Reason: evaluation.Reason}
	}
	return nil
}
