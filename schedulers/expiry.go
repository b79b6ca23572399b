package schedulers

import (
	"time"

	"anneal/domain"
	"anneal/projections"
)

// Expiry deletes each deployment at its expireTime, purges it at its purgeTime, and ends each job
// at its deadline.
type Expiry struct{}

// Name implements Scheduler.
func (Expiry) Name() string { return "expiry" }

// MinRest implements PacedScheduler.
func (Expiry) MinRest() time.Duration { return pacedRest }

// Plan implements Scheduler.
func (Expiry) Plan(v *projections.View, now time.Time) Plan {
	var plan Plan
	at := func(due *time.Time, intent domain.Intent) {
		switch {
		case due == nil:
		case due.After(now):
			plan.planAgainAt(*due)
		default:
			plan.add(intent)
		}
	}
	for row := range v.Deployments.All() {
		d := row.State
		switch d.State {
		case domain.DeploymentDeletingState:
		case domain.DeploymentDeletedState:
			at(d.PurgeTime, domain.Intend(domain.Deployments, row.Name, domain.PurgeDeployment{}))
		default:
			at(d.ExpireTime, domain.Intend(domain.Deployments, row.Name,
				domain.DeleteDeployment{IgnoreChecks: true, Reason: "the expireTime of the deployment has passed"}))
		}
	}
	for j := range jobs(v) {
		if j.Life.Deadline != nil && (j.Life.Live() || j.Life.State == domain.JobPausedState) {
			at(j.Life.Deadline, domain.IntendJob(j.Name, domain.ExpireJob{}))
		}
	}
	return plan
}
