package schedulers

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// SuspendedPrefix starts the status message of a job that is paused because its account is suspended.
// Such a job resumes when the account is restored; a job that was paused otherwise does not.
const SuspendedPrefix = "account suspended"

// CancelWithin is the time in which a canceled attempt must save its work and stop.
const CancelWithin = 5 * time.Minute

// Jobs moves every job from its creation to a node, and ends canceled and deleted jobs:
//
//	CREATING, VALIDATING    -> PENDING, or FAILED with all errors of the resources that it names
//	VALIDATING, PENDING     -> CREATING_INPUT_DATASET, to create its evaluation split
//	CREATING_INPUT_DATASET  -> PENDING when the datasets are READY, FAILED when they cannot be created
//	RE_QUEUEING             -> PENDING
//	PENDING                 -> RUNNING where it fits: the oldest first, skipping jobs that do not fit.
//	                           A job that no node can train stays, with that status
//	VALIDATING, PENDING     -> IDLE, for a trainer that waits for its first step
//	WRITING_RESULTS, stored -> COMPLETED, EARLY_STOPPED or IDLE, once the model is registered
//	CANCELLING              -> CANCELLED when it has stopped, its node is lost, or it takes too long
//	live, account suspended -> PAUSED, and back when the account is restored
//	DELETING                -> DELETING_CLEANING_UP when no node holds an allocation of it
type Jobs struct {
	Placement    Placement     // nil is BestFit
	CancelWithin time.Duration // 0 is the constant
}

// Name implements Scheduler.
func (Jobs) Name() string { return "jobs" }

// Plan implements Scheduler.
func (s Jobs) Plan(v *projections.View, now time.Time) Plan {
	var plan Plan
	var waiting []job
	fleet := fleetOf(v)
	for j := range jobs(v) {
		switch suspended := s.suspended(v, j); {
		case j.Life.Outcome != nil:
			finish(&plan, v, j)
		case suspended != "" && j.Life.Live():
			plan.add(domain.IntendJob(j.Name, domain.PauseJob{Reason: suspended}))
		case j.lost(v) != "":
			plan.add(domain.IntendJob(j.Name, domain.FailJob{Attempt: j.Life.Attempt,
				Status: domain.StatusOf(domain.Errorf(domain.NotFound, "%s", j.lost(v)))}))
		case j.Life.State == domain.JobPausedState:
			if suspended == "" && strings.HasPrefix(j.Life.Status.Message, SuspendedPrefix) {
				plan.add(domain.IntendJob(j.Name, domain.ResumeJob{}))
			}
		case j.Life.State == domain.JobCreatingState:
			plan.add(domain.IntendJob(j.Name, domain.StartValidation{}))
		case j.Life.State == domain.JobValidatingState:
			if s.admit(&plan, v, j) {
				plan.add(queue(v, j))
			}
		case j.Life.State == domain.JobPreparingState:
			prepare(&plan, v, j)
		case j.Life.State == domain.JobRequeueState:
			plan.add(domain.IntendJob(j.Name, domain.QueueJob{}))
		case j.Life.State == domain.JobPendingState:
			waiting = append(waiting, j)
		case j.Life.State == domain.JobCancellingState:
			s.cancel(&plan, fleet, j, now)
		case j.Life.State == domain.JobDeletingState && fleet.holds[j.Name] == 0:
			plan.add(domain.IntendJob(j.Name, domain.CleanJob{}))
		}
	}
	s.start(&plan, v, fleet, waiting)
	return plan
}

// finish registers the output model of a job's last attempt, and then ends the job: the rest of what
// follows JobResultsStored.
func finish(plan *Plan, v *projections.View, j job) {
	o := j.Life.Outcome
	row, exists := v.Models.Get(o.Output)
	switch {
	case !exists:
		plan.add(domain.Intend(domain.Models, o.Output, domain.RegisterModel(o.Model)))
	case row.State.SourceJob != j.Name || row.State.Files.Folder != o.Results.Folder:
		plan.add(domain.IntendJob(j.Name, domain.FailJob{Status: domain.StatusOf(
			domain.Errorf(domain.AlreadyExists,
				"outputModel: model %s already exists: choose another name, or delete the model", o.Output))}))
	default:
		plan.add(domain.IntendFinish(j.Name, j.spec().Waits, o.Attempt))
	}
}

// suspended returns why the job's account may not run jobs, or "".
func (Jobs) suspended(v *projections.View, j job) string {
	row, ok := v.Accounts.Get(domain.NewName("", "accounts", j.Name.Account()))
	if !ok || !row.State.Suspended() {
		return ""
	}
	return fmt.Sprintf("%s: %s", SuspendedPrefix, row.State.SuspendState)
}

// admit reports whether all resources that the job names are valid. It fails an invalid job, and
// leaves one that must wait.
func (Jobs) admit(plan *Plan, v *projections.View, j job) bool {
	result := j.check(v)
	result.errors = append(result.errors, j.unchecked(v, result.errors)...)
	switch {
	case len(result.errors) > 0:
		plan.add(domain.IntendJob(j.Name, domain.FailJob{Status: result.status()}))
	case result.waits && result.message != "":
		setWaiting(plan, j, result.message)
	}
	return len(result.errors) == 0 && !result.waits
}

// setWaiting records what the job waits for; "" is capacity.
func setWaiting(plan *Plan, j job, what string) {
	if what != "" && j.Life.Status.Message != domain.HeldPrefix+what || what == "" && j.Life.Held() {
		plan.add(domain.IntendJob(j.Name, domain.HoldJob{For: what}))
	}
}

// cancel confirms the cancellation once no attempt can be running.
func (s Jobs) cancel(plan *Plan, fleet *fleet, j job, now time.Time) {
	requested := j.Updated
	if j.Life.CancelTime != nil {
		requested = *j.Life.CancelTime
	}
	due := requested.Add(cmp.Or(s.CancelWithin, CancelWithin))
	if j.Life.Active() && fleet.stopReason(j) == "" && now.Before(due) {
		plan.planAgainAt(due)
		return
	}
	plan.add(domain.IntendJob(j.Name, domain.ConfirmCancel{Attempt: j.Life.Attempt}))
}

// start places pending jobs, the oldest first. It validates the resources that a job names again: a
// resumed job was not validated, and a dataset may have been deleted since.
func (s Jobs) start(plan *Plan, v *projections.View, fleet *fleet, queue []job) {
	slices.SortStableFunc(queue, func(a, b job) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	full := map[string]bool{} // needs that did not fit: capacity only shrinks while planning
	for _, j := range queue {
		if len(plan.Steps) >= maxSteps {
			return // no more steps are executed before the next plan
		}
		if !s.admit(plan, v, j) {
			continue
		}
		spec := j.spec()
		need := spec.Need()
		if j.carves(v) {
			plan.add(carveOut(v, j))
			continue
		}
		if spec.Awaits() {
			plan.add(await(j)) // resumed between two steps
			continue
		}
		if !fleet.engines[need.Engine] {
			setWaiting(plan, j, fmt.Sprintf(
				"a node that can %s: no node of this installation says that it can; start an "+
					"agent whose engine does", need.Engine))
			continue
		}
		var chosen []domain.Name
		if !full[need.String()] {
			chosen, _ = placement(s.Placement).Place(fleet.nodes, need)
		}
		if len(chosen) == 0 {
			full[need.String()] = true
			setWaiting(plan, j, domain.HeldForRoom+": "+need.String())
			continue
		}
		fleet.take(chosen, need.Takes)
		fleet.gang(plan, j, need, chosen, revision(v, j))
	}
}

// gang plans the next attempt of a job: it reserves its allocation on every node, and the start
// commits them all.
func (f *fleet) gang(plan *Plan, j job, need domain.Need, nodes []domain.Name, evaluator int) {
	attempt := j.Life.NextAttempt()
	allocation := domain.Allocation{ID: domain.AllocationID(j.Name, attempt), For: j.Name, Attempt: attempt,
		Takes: need.Takes}
	parts := make([]domain.Intent, len(nodes))
	for i, node := range nodes {
		parts[i] = f.allocate(node, allocation)
	}
	plan.reserve(parts, domain.IntendJob(j.Name, domain.StartJob{Attempt: attempt, Nodes: nodes, Takes: need.Takes,
		Evaluator: evaluator}),
		abandonment(allocation, "the attempt could not start on all of its nodes"))
}

// allocate reserves resources of a node, unless the node registers again after the view.
func (f *fleet) allocate(node domain.Name, a domain.Allocation) domain.Intent {
	return domain.Intend(domain.Nodes, node, domain.PlaceAllocation{Allocation: a, Registered: f.registered[node]})
}

// revision returns the newest built revision of the job's evaluator; 0 without an evaluator.
func revision(v *projections.View, j job) int {
	row, ok := v.Evaluators.Get(domain.Name(j.spec().Evaluator))
	if !ok {
		return 0
	}
	return row.State.Active
}

func placement(p Placement) Placement {
	if p == nil {
		return BestFit{}
	}
	return p
}
