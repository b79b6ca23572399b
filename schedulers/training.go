package schedulers

import (
	"cmp"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// ServiceIdle is how long a training service that waits for a node may be idle before it stops.
const ServiceIdle = 5 * time.Minute

// Training removes the training sessions and runs of jobs that no longer exist, and the checkpoints
// of runs at their expireTime.
type Training struct{}

// Name implements Scheduler.
func (Training) Name() string { return "training" }

// MinRest implements PacedScheduler.
func (Training) MinRest() time.Duration { return pacedRest }

// Plan implements Scheduler.
func (Training) Plan(v *projections.View, now time.Time) Plan {
	var plan Plan
	exists := func(job domain.Name, event string) bool {
		row, ok := v.Job(job)
		return ok && row.CreateEvent == event
	}
	for row := range v.Runs.All() {
		if !exists(row.State.Job, row.State.JobEvent) {
			plan.add(domain.Intend(domain.TrainingRuns, row.Name,
				domain.Command[domain.TrainingRun](domain.DeleteTrainingRun{})))
			continue
		}
		for _, c := range row.State.Checkpoints {
			switch {
			case c.ExpireTime == nil:
			case c.ExpireTime.After(now):
				plan.planAgainAt(*c.ExpireTime)
			default:
				plan.add(domain.Intend(domain.TrainingRuns, row.Name, domain.Command[domain.TrainingRun](
					domain.DeleteTrainingCheckpoint{Kind: c.Kind, Name: c.Name})))
			}
		}
	}
	for row := range v.Sessions.All() {
		if !exists(row.State.Job, row.State.JobEvent) {
			plan.add(domain.Intend(domain.TrainingSessions, row.Name,
				domain.Command[domain.TrainingSession](domain.DeleteTrainingSession{})))
		}
	}
	return plan
}

// serviceNeed returns the need of a job whose attempts serve training runs: one node, with the
// kernel that computes its runs, because another kernel cannot continue them bit-exactly. For other
// jobs it returns need.
func serviceNeed(v *projections.View, j job, need domain.Need) domain.Need {
	if !j.spec().Service {
		return need
	}
	need.Count = 1
	for row := range v.Runs.In(j.Name.Account()) {
		run := &row.State
		if run.Job == j.Name && run.Live() && run.Opening != nil && run.Opening.Kernel != "" && run.Opening.Attempt > 0 {
			need.Engine += ":" + run.Opening.Kernel
			return need
		}
	}
	return need
}

// stopIdleService plans to stop the training service of a waiting job if it has been idle for
// ServiceIdle, and reports whether it does.
func (s Jobs) stopIdleService(plan *Plan, v *projections.View, j job, now time.Time) bool {
	if !j.spec().Service || j.isNew() {
		return false
	}
	since := v.Live.TrainingActivity(j.Name)
	if j.Updated.After(since) {
		since = j.Updated
	}
	if due := since.Add(cmp.Or(s.ServiceIdle, ServiceIdle)); now.Before(due) {
		plan.planAgainAt(due)
		return false
	}
	plan.add(domain.Intend(domain.TrainerJobs, j.Name,
		domain.Command[domain.TrainerJob](domain.StopService{Attempt: j.Life.Attempt})))
	return true
}
