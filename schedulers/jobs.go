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

// SuspendedPrefix begins the status message of a job that is paused because its account is
// suspended. The scheduler resumes only jobs with this message when the account is restored.
const SuspendedPrefix = "account suspended"

// CancelWithin is the grace period in which the attempt of a cancelled or paused job must save its
// work and stop. An attempt that leaves a node that is being drained has until the deadline of the
// drain, if that is later.
const CancelWithin = 5 * time.Minute

// Jobs moves every job from its creation to a node, and ends cancelled and deleted jobs:
//
//	CREATING, VALIDATING    -> RUNNING on nodes with capacity, otherwise PENDING; FAILED with all
//	                           errors of the resources that it names
//	CREATING                -> VALIDATING, while such a resource is not ready
//	VALIDATING, PENDING     -> CREATING_INPUT_DATASET, to create its evaluation split
//	CREATING_INPUT_DATASET  -> PENDING when the datasets are READY, FAILED when creating them fails
//	RE_QUEUEING             -> PENDING
//	PENDING                 -> RUNNING on nodes with capacity, in the order of the package queue,
//	                           those with PurposePilot last. A job that no node can train stays
//	                           PENDING, and its status says so
//	RUNNING, preempted      -> RE_QUEUEING when its attempt has stopped, as for CANCELLING
//	VALIDATING, PENDING     -> IDLE, for a trainer that waits for its first step
//	PENDING                 -> IDLE, for a trainer whose training service is idle
//	WRITING_RESULTS, stored -> COMPLETED, EARLY_STOPPED or IDLE, once the model is registered
//	CANCELLING              -> CANCELLED when its attempt has stopped, its node is lost, or
//	                           CancelWithin has passed
//	live, account suspended -> PAUSED when its attempt has stopped, as for CANCELLING, and back when
//	                           the account is restored
//	DELETING                -> DELETING_CLEANING_UP when no node holds an allocation for it
type Jobs struct {
	CancelWithin time.Duration // grace period of attempts that must stop; 0 stands for the constant CancelWithin
	ServiceIdle  time.Duration // how long a waiting training service may be idle; 0 stands for the constant ServiceIdle
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
			finish(&plan, v, j, now)
		case j.Life.Pausing != nil && j.Life.Live() && (suspended == "" || !j.Life.Preempting):
			s.stop(&plan, fleet, j, s.stopDeadline(v, j, j.Life.Pausing.Time), now)
		case suspended != "" && j.Life.Live():
			plan.add(domain.IntendJob(j.Name, domain.PauseJob{Reason: suspended}))
		case j.lost(v) != "":
			plan.add(domain.IntendJob(j.Name, domain.FailJob{Attempt: j.Life.Attempt,
				Status: domain.StatusOf(domain.Errorf(domain.NotFound, "%s", j.lost(v)))}))
		case j.Life.State == domain.JobPausedState:
			if suspended == "" && strings.HasPrefix(j.Life.Status.Message, SuspendedPrefix) {
				plan.add(domain.IntendJob(j.Name, domain.ResumeJob{}))
			}
		case j.isNew():
			if s.admitNew(&plan, v, j) {
				waiting = append(waiting, j)
			}
		case j.Life.State == domain.JobCreatingInputState:
			prepare(&plan, v, j)
		case j.Life.State == domain.JobReQueueingState:
			plan.add(domain.IntendJob(j.Name, domain.QueueJob{}))
		case j.Life.State == domain.JobPendingState:
			waiting = append(waiting, j)
		case j.Life.State == domain.JobCancellingState:
			s.cancel(&plan, v, fleet, j, now)
		case j.Life.State == domain.JobDeletingState && fleet.holds[j.Name] == 0:
			plan.add(domain.IntendJob(j.Name, domain.CleanJob{}))
		}
	}
	s.start(&plan, v, fleet, waiting, now)
	return plan
}

// finishWithin is the time in which the coordinator that has recorded the results of a job also
// registers the model and completes the job. Jobs does both only after that time, so that it does
// not race with the coordinator.
const finishWithin = time.Second

// finish plans the steps that follow domain.JobResultsStored: to register the output model, to load
// it into a deployment if the job requests it, and to complete the job or its train step. Until
// finishWithin after the results were stored, it leaves registering and completing to the
// coordinator. If the model is to be loaded, it plans the load and the completion as soon as the
// model is registered.
func finish(plan *Plan, v *projections.View, j job, now time.Time) {
	o, age := j.Life.Outcome, now.Sub(j.Updated)
	row, exists := v.Models.Get(o.Output)
	loads := j.Life.Options != nil && j.Life.Options.LoadAddon
	switch {
	case exists && (row.State.SourceJob != j.Name || row.State.Files.Prefix != o.Results.Prefix):
		plan.add(domain.IntendJob(j.Name, domain.FailJob{Status: domain.StatusOf(
			domain.Errorf(domain.AlreadyExists,
				"outputModel: model %s already exists: delete the model and resume the job, or create another job", o.Output))}))
	// leave it to the coordinator; a negative age means that the clocks of the control planes
	// differ, so do not wait
	case age >= 0 && age < finishWithin && !(exists && loads):
		plan.planAgainAt(j.Updated.Add(finishWithin))
	case !exists:
		plan.add(domain.Intend(domain.Models, o.Output, domain.RegisterModel(o.Model)))
	default:
		if load, ok := loadResult(v, j, row); ok {
			plan.add(load)
		}
		plan.add(domain.IntendFinish(j.Name, j.spec().Waits, o.Attempt))
	}
}

// suspended returns why the account of the job is suspended, so that the job must pause; "" when it
// is not.
func (Jobs) suspended(v *projections.View, j job) string {
	row, ok := v.Accounts.Get(domain.NewName("", "accounts", j.Name.Account()))
	if !ok || !row.State.Suspended() {
		return ""
	}
	return fmt.Sprintf("%s: %s", SuspendedPrefix, row.State.SuspendState)
}

// admit reports whether all resources that the job names are valid. Otherwise it plans to fail the
// job, or to record in its status what it waits for.
func (Jobs) admit(plan *Plan, v *projections.View, j job) bool {
	result := j.validate(v)
	switch {
	case len(result.errors) > 0:
		plan.add(domain.IntendJob(j.Name, domain.FailJob{Status: result.status()}))
	case result.waits && result.message != "":
		setWaiting(plan, j, result.message)
	}
	return len(result.errors) == 0 && !result.waits
}

// isNew reports whether the job has not been in the queue yet, and no input is created for it.
func (j job) isNew() bool {
	return j.Life.State == domain.JobCreatingState || j.Life.State == domain.JobValidatingState
}

// admitNew reports whether a new job can enter the queue: all resources that the job names are
// valid, and no input has to be created first. Otherwise admitNew plans the next step of the job.
func (s Jobs) admitNew(plan *Plan, v *projections.View, j job) bool {
	prepares := j.needsCarveOut(v) || j.spec().AwaitsStep()
	if j.Life.State == domain.JobCreatingState {
		if result := j.validate(v); len(result.errors) == 0 && (result.waits || prepares) {
			plan.add(domain.IntendJob(j.Name, domain.StartValidation{}))
			return false
		}
	}
	switch {
	case !s.admit(plan, v, j):
		return false
	case j.needsCarveOut(v):
		plan.add(carveOut(v, j))
	case prepares:
		plan.add(await(j))
	}
	return !prepares
}

// validate validates all resources that the job names.
func (j job) validate(v *projections.View) validation {
	result := j.check(v)
	result.errors = append(result.errors, j.unchecked(v, result.errors)...)
	return result
}

// waitsFor reports whether the job's status says that the job waits for what, a text such as
// capacityOf returns. If a job waits for several things, its status names the same one until that
// one is available (see hold), so that the status does not change with every plan.
func (j job) waitsFor(what string) bool { return j.Life.Status.Message == domain.HeldPrefix+what }

// setWaiting plans to record in the job's status what the job waits for. If what is "", it plans to
// clear the status.
func setWaiting(plan *Plan, j job, what string) {
	if what != "" && !j.waitsFor(what) || what == "" && j.Life.Held() {
		plan.add(domain.IntendJob(j.Name, domain.HoldJob{For: what}))
	}
}

// cancel plans to confirm the cancellation of a job once its attempt cannot be running any more.
func (s Jobs) cancel(plan *Plan, v *projections.View, fleet *fleet, j job, now time.Time) {
	requested := j.Updated
	if j.Life.CancelTime != nil {
		requested = *j.Life.CancelTime
	}
	s.stop(plan, fleet, j, s.stopDeadline(v, j, requested), now)
}

// stopDeadline returns when the attempt of a job must have stopped: CancelWithin after the request
// to stop, or at the deadline of the drain for which the job was preempted, if that is later.
func (s Jobs) stopDeadline(v *projections.View, j job, requested time.Time) time.Time {
	due := requested.Add(cmp.Or(s.CancelWithin, CancelWithin))
	if !j.Life.Preempting || j.Life.State == domain.JobCancellingState {
		return due
	}
	for _, name := range j.Life.Nodes {
		if node, ok := v.Nodes.Get(name); ok && node.State.Draining() && node.State.Cordon.Deadline.After(due) {
			due = node.State.Cordon.Deadline
		}
	}
	return due
}

// stop plans to confirm the cancellation, pause or preemption of a job once its attempt cannot be
// running any more, or due has passed.
func (s Jobs) stop(plan *Plan, fleet *fleet, j job, due, now time.Time) {
	if j.Life.Active() && fleet.stopReason(j) == "" && now.Before(due) {
		plan.planAgainAt(due)
		return
	}
	plan.add(domain.IntendJob(j.Name, j.Life.ConfirmStop(j.Life.Attempt)))
}

// start plans the next attempts of pending and new jobs, in the order of the package queue over all
// accounts, and preempts running jobs for pending ones. New jobs that do not start become PENDING.
// start validates the resources of each pending job once more, because a resumed job was not
// validated, and a dataset may have been deleted after the first validation.
func (s Jobs) start(plan *Plan, v *projections.View, fleet *fleet, pending []job, now time.Time) {
	slices.SortStableFunc(pending, func(a, b job) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	var waiting []waitingJob
	for _, j := range pending {
		if len(plan.Steps) >= maxSteps {
			return // the plan is full: Run executes at most maxSteps steps of one plan
		}
		if !j.isNew() && !s.admit(plan, v, j) { // Plan has just admitted the new jobs
			continue
		}
		spec := j.spec()
		need := serviceNeed(v, j, fleet.needOf(v, j.Name, spec))
		switch {
		case j.needsCarveOut(v):
			plan.add(carveOut(v, j))
		case spec.AwaitsStep():
			plan.add(await(j)) // the job was resumed between two train steps, and has nothing to run
		case s.stopIdleService(plan, v, j, now):
		case !fleet.engines[need.Engine] && j.isNew():
			plan.add(domain.IntendJob(j.Name, domain.QueueJob{}))
		case !fleet.engines[need.Engine]:
			setWaiting(plan, j, fmt.Sprintf(
				"a node that can %s: no registered node has this capability; start an "+
					"agent whose engine has it", need.Engine))
		default:
			waiting = append(waiting, waitingJob{j, need})
		}
	}
	if len(waiting) == 0 && !belowMinimum(v) {
		return
	}
	queue := decide(v, fleet, now, waiting)
	started := queue.carryOut(plan)
	s.hold(plan, queue, waiting, started)
	if (len(started) < len(waiting) || queue.minimum) && len(fleet.holds) > 0 {
		plan.planAgainAt(now.Truncate(queuePeriod).Add(queuePeriod))
	}
}

// hold plans to record what the jobs that do not start wait for; new jobs first enter the queue.
// For a job that lacks both quota and capacity, the status keeps naming the same one until that one
// is available.
func (s Jobs) hold(plan *Plan, q *jobQueue, waiting []waitingJob, started map[domain.Name]bool) {
	v, fleet := q.view, q.fleet
	quotas, fits := acceleratorQuotas{v, map[string]int64{}}, map[string]bool{}
	for _, w := range waiting {
		if started[w.Name] {
			quotas.exceeded(w.Name.Account(), w.need) // initializes the account's usage, to which quotas.take adds
			quotas.take(w.Name.Account(), w.need)
		}
	}
	for _, w := range waiting {
		if started[w.Name] || len(plan.Steps) >= maxSteps {
			continue
		}
		if w.isNew() {
			plan.add(domain.IntendJob(w.Name, domain.QueueJob{}))
			continue
		}
		need := w.need.String()
		exceeded := quotas.exceeded(w.Name.Account(), w.need)
		if exceeded != "" && w.waitsFor(capacityOf(w.need)) {
			if _, known := fits[need]; !known {
				_, fits[need] = fleet.place(v, w.need, nil)
			}
			if !fits[need] {
				exceeded = ""
			}
		}
		if exceeded != "" {
			setWaiting(plan, w.job, exceeded)
			continue
		}
		if wait := q.wait(w); wait != nil || !w.waitsFor(capacityOf(w.need)) {
			plan.add(domain.IntendJob(w.Name, domain.HoldJob{For: capacityOf(w.need), Wait: wait}))
		}
	}
}

// gang adds to the plan the step that starts the next attempt of a job on the chosen nodes. The
// step reserves an allocation on each node, and its commit starts the attempt. evaluator is the
// revision of the job's evaluator; 0 without an evaluator.
func (f *fleet) gang(plan *Plan, j job, need domain.Need, chosen []chosenNode, evaluator int) {
	attempt := j.Life.NextAttempt()
	allocation := domain.Allocation{ID: domain.AllocationID(j.Name, attempt), For: j.Name, Attempt: attempt,
		Resources: need.Resources}
	parts := make([]domain.Intent, len(chosen))
	for i, node := range chosen {
		parts[i] = f.allocate(node, allocation)
	}
	plan.reserve(parts, domain.IntendJob(j.Name, domain.StartJob{Attempt: attempt, Nodes: namesOf(chosen),
		Resources: need.Resources, Evaluator: evaluator}),
		abandonment(allocation, "the attempt could not start on all of its nodes"))
}

// allocate returns the intent that reserves the allocation a on a node. The intent is refused if
// the agent has registered the node again since the plan's view.
func (f *fleet) allocate(node chosenNode, a domain.Allocation) domain.Intent {
	a.Reason = &node.reason
	return domain.Intend(domain.Nodes, node.name,
		domain.PlaceAllocation{Allocation: a, Registered: f.registered[node.name]})
}

// revision returns the newest revision of the job's evaluator that is built; 0 without an
// evaluator.
func revision(v *projections.View, j job) int {
	row, ok := v.Evaluators.Get(domain.Name(j.spec().Evaluator))
	if !ok {
		return 0
	}
	return row.State.Active
}
