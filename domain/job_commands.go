package domain

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func (l JobLife) must(allowed ...string) error {
	switch {
	case !l.Exists():
		return gone("job")
	case l.State == JobCancellingState && slices.Contains(allowed, JobCancelledState):
		return precondition("JOB_STATE", "the job is still being cancelled: try again once it is %s", JobCancelledState)
	case !slices.Contains(allowed, l.State):
		return precondition("JOB_STATE", "the job is %s; this needs %s", l.State, join(allowed))
	}
	return nil
}

// fence refuses what an attempt reports when another has begun, or when the
// attempt is over.
func (l JobLife) fence(attempt int) error {
	switch {
	case !l.Exists():
		return gone("job")
	case attempt != l.Attempt || !l.Active():
		return precondition("STALE_ATTEMPT", "attempt %d is over: the job is %s at attempt %d", attempt, l.State, l.Attempt)
	}
	return nil
}

// StartValidation begins the check of what the job names.
type StartValidation struct{}

func (StartValidation) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	if l.State == JobValidatingState {
		return nil, nil
	}
	return JobValidating{}, l.must(JobCreatingState)
}

// PrepareInput records which datasets are made of the job's own; they are
// created after it. Others may be named while they are being made. A job that an
// attempt has begun keeps what it has.
type PrepareInput struct{ Inputs JobInputs }

func (c PrepareInput) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	if l.State == JobPreparingState && l.Inputs != nil && *l.Inputs == c.Inputs {
		return nil, nil
	}
	if err := l.must(JobValidatingState, JobPendingState, JobPreparingState); err != nil {
		return nil, err
	}
	if l.Attempt > 0 {
		return nil, precondition("ATTEMPT_BEGUN", "attempt %d has learnt from what the job has: its input stays", l.Attempt)
	}
	return JobPreparing{&c.Inputs}, nil
}

// QueueJob makes the job wait for capacity.
type QueueJob struct{}

func (QueueJob) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	if l.State == JobPendingState {
		return nil, nil
	}
	return JobQueued{}, l.must(JobValidatingState, JobPreparingState, JobRequeueState)
}

// HoldJob records what a job waits for; "" is nothing but capacity.
type HoldJob struct{ For string }

// HeldPrefix begins the status of a job that is held, HeldForRoom what follows
// when it waits for capacity on nodes alone.
const (
	HeldPrefix  = "waiting for "
	HeldForRoom = "room"
)

func (c HoldJob) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	status := StatusOf(nil)
	if c.For != "" {
		status = Status{Unavailable.String(), HeldPrefix + c.For}
	}
	if err := l.must(JobValidatingState, JobPendingState); err != nil {
		return nil, err
	}
	if l.Status == status {
		return nil, nil
	}
	return JobHeld{status}, nil
}

// Held reports whether the job's status says what it waits for.
func (l JobLife) Held() bool { return strings.HasPrefix(l.Status.Message, HeldPrefix) }

// StartJob begins the next attempt on nodes that are allocated already: it
// commits what the allocations reserved.
type StartJob struct {
	Attempt   int // NextAttempt of the job
	Nodes     []Name
	Takes     Resources
	Evaluator int `json:",omitempty"` // revision of the evaluator, for the first attempt; later ones keep it
}

func (c StartJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	if l.State == JobRunningState && l.Attempt == c.Attempt && slices.Equal(l.Nodes, c.Nodes) {
		return nil, nil
	}
	if err := l.must(JobPendingState); err != nil {
		return nil, err
	}
	if len(c.Nodes) == 0 {
		return nil, precondition("NO_NODES", "an attempt needs at least one node")
	}
	if c.Attempt != l.NextAttempt() {
		return nil, precondition("STALE_ATTEMPT", "the next attempt is %d, not %d", l.NextAttempt(), c.Attempt)
	}
	return JobStarted{c.Attempt, c.Nodes, c.Takes, now, cmp.Or(l.EvaluatorRevision, c.Evaluator)}, nil
}

// AbandonAttempt gives up an attempt that has allocations and has not begun.
// From then on it cannot begin, so what it reserved may be released.
type AbandonAttempt struct {
	Attempt int
	Reason  string
}

func (c AbandonAttempt) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	switch {
	case !l.Exists():
		return nil, gone("job")
	case c.Attempt <= l.Abandoned:
		return nil, nil
	case c.Attempt <= l.Attempt:
		return nil, precondition("ATTEMPT_BEGUN", "attempt %d has begun", c.Attempt)
	}
	return JobAbandoned(c), nil
}

// RecordCheckpoint records a checkpoint from which the job can continue.
type RecordCheckpoint struct {
	JobCheckpoint
	Progress *JobProgress `json:",omitempty"`
}

func (c RecordCheckpoint) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	if last, ok := l.LastCheckpoint(); ok && last.Attempt == c.Attempt && last.Step >= c.Step {
		return nil, nil
	}
	if err := l.fence(c.Attempt); err != nil {
		return nil, err
	}
	c.Time = now
	return JobCheckpointed(c), nil
}

// IdleJob records that a kept-alive trainer waits for its next step.
type IdleJob struct{ Attempt int }

func (c IdleJob) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	if err := l.fence(c.Attempt); err != nil {
		return nil, err
	}
	if l.State == JobIdleState {
		return nil, nil
	}
	return JobIdled(c), l.must(JobRunningState)
}

// WakeJob records that a kept-alive trainer was given a step.
type WakeJob struct{ Attempt int }

func (c WakeJob) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	if err := l.fence(c.Attempt); err != nil {
		return nil, err
	}
	if l.State == JobRunningState {
		return nil, nil
	}
	return JobWoken(c), l.must(JobIdleState)
}

// WriteResults records that training is over and its results are being stored.
type WriteResults struct{ Attempt int }

func (c WriteResults) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	if err := l.fence(c.Attempt); err != nil {
		return nil, err
	}
	if l.State == JobWritingState {
		return nil, nil
	}
	return JobWriting(c), l.must(JobRunningState, JobIdleState)
}

// StoreResults records what an attempt left, and with it that the attempt is
// over: nothing but registering the model stands between the job and its end.
type StoreResults struct{ JobOutcome }

func (c StoreResults) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	if l.Outcome != nil && l.Outcome.Attempt == c.Attempt || l.Output == c.Output && l.Output != "" && l.Attempt == c.Attempt && !l.Active() {
		return nil, nil
	}
	if err := l.fence(c.Attempt); err != nil {
		return nil, err
	}
	return JobResultsStored{c.JobOutcome, now}, l.must(JobRunningState, JobIdleState, JobWritingState)
}

// unfinished refuses to stop a job that is done but for its model.
func (l JobLife) unfinished() error {
	if l.Outcome != nil {
		return precondition("JOB_STATE", "the job has its results, and its model is being registered: it can no longer be stopped")
	}
	return nil
}

// CompleteJob records the outcome. With Attempt alone it is the one that was
// stored, whose model is registered by then.
type CompleteJob struct {
	Attempt      int
	StoppedEarly bool
	Reason       string // why it stopped early
	Output       Name
	Results      Files
	Progress     *JobProgress `json:",omitempty"`
}

func (c CompleteJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	if (l.State == JobCompletedState || l.State == JobEarlyState) && l.Attempt == c.Attempt {
		return nil, nil
	}
	if o := l.Outcome; o != nil && o.Attempt == c.Attempt {
		return JobCompleted{o.Attempt, o.StoppedEarly, o.Reason, o.Output, o.Results, now, o.Progress}, l.must(JobWritingState)
	}
	if err := l.fence(c.Attempt); err != nil {
		return nil, err
	}
	return JobCompleted{c.Attempt, c.StoppedEarly, c.Reason, c.Output, c.Results, now, c.Progress}, l.must(JobRunningState, JobIdleState, JobWritingState)
}

// RequeueJob ends an attempt that was lost, and with it the job when too many
// were. Preempted marks one that does not count. Orphan marks one that ended
// with its control plane, which counts only in a row of such (see MaxFailures).
type RequeueJob struct {
	Attempt   int
	Reason    string
	Preempted bool
	Orphan    bool `json:",omitempty"`
}

func (c RequeueJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	if l.State == JobRequeueState && l.Attempt == c.Attempt {
		return nil, nil
	}
	if err := l.fence(c.Attempt); err != nil {
		return nil, err
	}
	if err := l.must(JobRunningState, JobIdleState, JobWritingState); err != nil {
		return nil, err
	}
	counted, most := !c.Preempted && !c.Orphan, strconv.Itoa(MaxFailures)
	var message string
	switch {
	case counted && l.Failures+1 >= MaxFailures:
		message = c.Reason + ": the last of " + most + " attempts"
	case c.Orphan && l.Orphans+1 >= MaxFailures && l.OrphanTime != nil && now.Sub(*l.OrphanTime) >= CrashLoop:
		message = c.Reason + " with its control plane: so ended " + strconv.Itoa(l.Orphans+1) + " attempts in a row, before a checkpoint; see that the server has memory enough and stays up, then resume the job"
	default:
		return JobRequeued{c.Attempt, c.Reason, counted, c.Orphan, now}, nil
	}
	return JobFailed{c.Attempt, Status{Unavailable.String(), message}, now}, nil
}

// FailJob ends the job for a reason that another attempt would not mend.
// Attempt is the one that found it; 0 is none, and then none may be at work.
type FailJob struct {
	Attempt int
	Status  Status
}

func (c FailJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	switch {
	case l.State == JobFailedState && (c.Attempt == 0 || c.Attempt == l.Attempt):
		return nil, nil
	case !l.Exists():
		return nil, gone("job")
	case !l.Live():
		return nil, precondition("JOB_STATE", "the job is %s", l.State)
	case c.Attempt != 0:
		if err := l.fence(c.Attempt); err != nil {
			return nil, err
		}
	case l.Active():
		return nil, precondition("ATTEMPT_AT_WORK", "attempt %d is at work on the job", l.Attempt)
	}
	return JobFailed{c.Attempt, c.Status, now}, nil
}

// CancelJob requests that the job stops; its last checkpoint is kept.
type CancelJob struct{}

func (CancelJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	switch {
	case !l.Exists():
		return nil, gone("job")
	case l.State == JobCancellingState || l.State == JobCancelledState:
		return nil, nil
	case !l.Live() && l.State != JobPausedState:
		return nil, precondition("JOB_STATE", "the job is %s and can no longer be cancelled", l.State)
	}
	return JobCancelling{now}, l.unfinished()
}

// ConfirmCancel records that no attempt is at work any more.
type ConfirmCancel struct{ Attempt int }

func (c ConfirmCancel) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	switch {
	case l.State == JobCancelledState:
		return nil, nil
	case l.Exists() && c.Attempt != l.Attempt:
		return nil, precondition("STALE_ATTEMPT", "attempt %d is over: the job is at attempt %d", c.Attempt, l.Attempt)
	}
	return JobCancelled{c.Attempt, now}, l.must(JobCancellingState)
}

// PauseJob stops the job until it is resumed.
type PauseJob struct{ Reason string }

func (c PauseJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	switch {
	case !l.Exists():
		return nil, gone("job")
	case l.State == JobPausedState:
		return nil, nil
	case !l.Live():
		return nil, precondition("JOB_STATE", "the job is %s and cannot be paused", l.State)
	}
	return JobPaused{c.Reason, now}, l.unfinished()
}

// ExpireJob ends the job when its deadline has passed.
type ExpireJob struct{}

func (ExpireJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	switch {
	case l.State == JobExpiredState:
		return nil, nil
	case !l.Exists():
		return nil, gone("job")
	case l.Deadline == nil || now.Before(*l.Deadline):
		return nil, precondition("NOT_DUE", "the job's deadline has not passed")
	case !l.Live() && l.State != JobPausedState:
		return nil, precondition("JOB_STATE", "the job is %s", l.State)
	}
	return JobExpired{now}, l.unfinished()
}

// ResumeJob queues a stopped job again; it continues from its last checkpoint.
type ResumeJob struct{}

func (ResumeJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	if l.Deadline != nil && !now.Before(*l.Deadline) && l.State != JobExpiredState {
		return nil, precondition("DEADLINE_PASSED", "the job's deadline passed at %s: create another job, with this one's model as warmStartFrom", l.Deadline.Format(time.RFC3339))
	}
	return JobResumed{}, l.must(JobFailedState, JobCancelledState, JobPausedState)
}

// DeleteJob stops the job and begins its removal.
type DeleteJob struct{}

func (DeleteJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	switch {
	case !l.Exists():
		return nil, gone("job")
	case l.Leaving():
		return nil, nil
	}
	return JobDeleting{now}, nil
}

// CleanJob records that nothing works on a deleted job any more, and that its
// files are being removed.
type CleanJob struct{}

func (CleanJob) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	if l.State == JobCleaningState {
		return nil, nil
	}
	return JobCleaning{}, l.must(JobDeletingState)
}

// PurgeJob records that a deleted job's files are gone.
type PurgeJob struct{}

func (PurgeJob) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	return JobPurged{}, l.must(JobCleaningState)
}
