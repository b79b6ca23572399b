package domain

import (
	"cmp"
	"slices"
	"strconv"
	"time"
)

func (l JobLife) must(allowed ...string) error {
	switch {
	case !l.Exists():
		return notFound("job")
	case l.State == JobCancellingState && slices.Contains(allowed, JobCancelledState):
		return precondition("JOB_STATE", "the job is still being cancelled: try again once it is %s", JobCancelledState)
	case !slices.Contains(allowed, l.State):
		return precondition("JOB_STATE", "the job is %s; the operation requires %s", l.State, join(allowed))
	}
	return nil
}

// fence returns an error unless attempt, the number in a report, is that of the job's current
// attempt and this attempt has not ended.
func (l JobLife) fence(attempt int) error {
	switch {
	case !l.Exists():
		return notFound("job")
	case attempt != l.Attempt || !l.Active():
		return precondition("STALE_ATTEMPT", "attempt %d is over: the job is %s at attempt %d", attempt, l.State, l.Attempt)
	}
	return nil
}

// StartValidation makes the job VALIDATING: a resource that the job names is not valid yet, or
// datasets are derived for the job.
type StartValidation struct{}

func (StartValidation) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	if l.State == JobValidatingState {
		return nil, nil
	}
	return JobValidating{}, l.must(JobCreatingState)
}

// PrepareInput records the names of the datasets that will be derived from the job's dataset. The
// datasets are created after the event. Until the first attempt starts, a further PrepareInput can
// name other datasets; after that, the inputs of the job cannot change.
type PrepareInput struct{ Inputs JobInputs }

func (c PrepareInput) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	if l.State == JobCreatingInputState && l.Inputs != nil && *l.Inputs == c.Inputs {
		return nil, nil
	}
	if err := l.must(JobValidatingState, JobPendingState, JobCreatingInputState); err != nil {
		return nil, err
	}
	if l.Attempt > 0 {
		return nil, precondition("ATTEMPT_BEGUN", "attempt %d has trained on the job's inputs, so the inputs cannot change",
			l.Attempt)
	}
	return JobPreparing{&c.Inputs}, nil
}

// QueueJob makes the job PENDING: the job waits in the queue for capacity.
type QueueJob struct{}

func (QueueJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	if l.State == JobPendingState {
		return nil, nil
	}
	return JobQueued{now}, l.must(JobCreatingState, JobValidatingState, JobCreatingInputState, JobReQueueingState)
}

// StartJob starts the next attempt on nodes on which allocations are reserved for the attempt. The
// event commits the reservations. A new job that is valid and for which there is capacity starts
// without having been VALIDATING or PENDING.
type StartJob struct {
	Attempt   int // number of the started attempt: the job's NextAttempt
	Nodes     []Name
	Resources Resources
	Evaluator int `json:",omitempty"` // revision of the evaluator for all attempts; recorded by the first attempt only
}

func (c StartJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	if l.State == JobRunningState && l.Attempt == c.Attempt && slices.Equal(l.Nodes, c.Nodes) {
		return nil, nil
	}
	if err := l.must(JobCreatingState, JobValidatingState, JobPendingState); err != nil {
		return nil, err
	}
	if len(c.Nodes) == 0 {
		return nil, precondition("NO_NODES", "an attempt needs at least one node, but none is given")
	}
	if c.Attempt != l.NextAttempt() {
		return nil, precondition("STALE_ATTEMPT", "attempt %d cannot start: the next attempt of the job is %d", c.Attempt,
			l.NextAttempt())
	}
	return JobStarted{c.Attempt, c.Nodes, c.Resources, now, cmp.Or(l.EvaluatorRevision, c.Evaluator)}, nil
}

// AbandonAttempt records that the next attempt will not start, although nodes have allocations for
// it. The job refuses its start from then on, so the allocations can be released.
type AbandonAttempt struct {
	Attempt int
	Reason  string
}

func (c AbandonAttempt) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	switch {
	case !l.Exists():
		return nil, notFound("job")
	case c.Attempt <= l.Abandoned:
		return nil, nil
	case c.Attempt <= l.Attempt:
		return nil, precondition("ATTEMPT_BEGUN", "attempt %d has started and cannot be abandoned", c.Attempt)
	}
	return JobAbandoned(c), nil
}

// RecordCheckpoint records a checkpoint from which the job can resume.
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

// WriteResults records that training is finished and its results are being stored.
type WriteResults struct{ Attempt int }

func (c WriteResults) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	if err := l.fence(c.Attempt); err != nil {
		return nil, err
	}
	if l.State == JobWritingResultsState {
		return nil, nil
	}
	return JobWriting(c), l.must(JobRunningState, JobIdleState)
}

// StoreResults records the results of an attempt and ends the attempt. After it, the model is
// registered and CompleteJob completes the job.
type StoreResults struct{ JobOutcome }

func (c StoreResults) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	if l.Outcome != nil && l.Outcome.Attempt == c.Attempt || l.Output == c.Output && l.Output != "" &&
		l.Attempt == c.Attempt && !l.Active() {
		return nil, nil
	}
	if err := l.fence(c.Attempt); err != nil {
		return nil, err
	}
	return JobResultsStored{c.JobOutcome, now}, l.must(JobRunningState, JobIdleState, JobWritingResultsState)
}

// mustLackResults returns an error when the results of the job are stored, because a job cannot be
// stopped after that.
func (l JobLife) mustLackResults() error {
	if l.Outcome != nil {
		return precondition("JOB_STATE",
			"the job's results are stored and its model is being registered, so it cannot be stopped any more")
	}
	return nil
}

// CompleteJob completes the job and records its outcome. After StoreResults, all fields but Attempt
// are ignored, because the outcome is stored already and its model is registered.
type CompleteJob struct {
	Attempt      int
	StoppedEarly bool
	Reason       string // why training stopped early; "" if it did not
	Output       Name
	Results      Files
	Progress     *JobProgress `json:",omitempty"`
}

func (c CompleteJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	if (l.State == JobCompletedState || l.State == JobEarlyStoppedState) && l.Attempt == c.Attempt {
		return nil, nil
	}
	if o := l.Outcome; o != nil && o.Attempt == c.Attempt {
		return JobCompleted{o.Attempt, o.StoppedEarly, o.Reason, o.Output, o.Results, now, o.Progress},
			l.must(JobWritingResultsState)
	}
	if err := l.fence(c.Attempt); err != nil {
		return nil, err
	}
	return JobCompleted{c.Attempt, c.StoppedEarly, c.Reason, c.Output, c.Results, now, c.Progress},
		l.must(JobRunningState, JobIdleState, JobWritingResultsState)
}

// RequeueJob ends an attempt that was lost, failed or was preempted, and queues the job again. The
// job fails instead when MaxFailures of its attempts have failed. A Preempted attempt does not
// count as failed. An Orphan attempt, which ended together with its control plane, counts only in a
// crash loop (see CrashLoop).
type RequeueJob struct {
	Attempt   int
	Reason    string
	Preempted bool
	Orphan    bool `json:",omitempty"`
}

func (c RequeueJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	if l.State == JobReQueueingState && l.Attempt == c.Attempt {
		return nil, nil
	}
	if err := l.fence(c.Attempt); err != nil {
		return nil, err
	}
	if err := l.must(JobRunningState, JobIdleState, JobWritingResultsState); err != nil {
		return nil, err
	}
	counted, limit := !c.Preempted && !c.Orphan, strconv.Itoa(MaxFailures)
	var message string
	switch {
	case counted && l.Failures+1 >= MaxFailures:
		message = c.Reason + ": " + limit + " attempts have failed"
	case c.Orphan && l.Orphans+1 >= MaxFailures && l.OrphanTime != nil && now.Sub(*l.OrphanTime) >= CrashLoop:
		message = c.Reason + " with its control plane: " + strconv.Itoa(l.Orphans+1) + " consecutive attempts ended in " +
			"this way without a checkpoint; make sure that the server has enough memory and keeps running, then resume the job"
	default:
		return JobRequeued{Attempt: c.Attempt, Reason: c.Reason, Counted: counted, Orphan: c.Orphan, Time: now}, nil
	}
	return JobFailed{c.Attempt, Status{Unavailable.String(), message}, now}, nil
}

// FailJob fails the job for a reason that another attempt would not fix. Attempt is the number of
// the attempt that reports the failure. 0 stands for a scheduler, which may fail a job only while
// no attempt is running.
type FailJob struct {
	Attempt int
	Status  Status
}

func (c FailJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	switch {
	case l.State == JobFailedState && (c.Attempt == 0 || c.Attempt == l.Attempt):
		return nil, nil
	case !l.Exists():
		return nil, notFound("job")
	case !l.Live():
		return nil, precondition("JOB_STATE", "the job is %s and has ended, so it cannot fail", l.State)
	case c.Attempt != 0:
		if err := l.fence(c.Attempt); err != nil {
			return nil, err
		}
	case l.Active():
		return nil, precondition("ATTEMPT_AT_WORK", "attempt %d of the job is running: only that attempt can fail the job",
			l.Attempt)
	}
	return JobFailed{c.Attempt, c.Status, now}, nil
}

// CancelJob requests that the job be cancelled. Its last checkpoint is kept.
type CancelJob struct{}

func (CancelJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	switch {
	case !l.Exists():
		return nil, notFound("job")
	case l.State == JobCancellingState || l.State == JobCancelledState:
		return nil, nil
	case !l.Live() && l.State != JobPausedState:
		return nil, precondition("JOB_STATE", "the job is %s and can no longer be cancelled", l.State)
	}
	return JobCancelling{now}, l.mustLackResults()
}

// ConfirmCancel makes a CANCELLING job CANCELLED, because none of its attempts is running any more.
// Attempt is the number of the job's newest attempt.
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

// PauseJob suspends the job until it is resumed. While an attempt is running, the job becomes
// PAUSED only when the attempt has saved a checkpoint and stopped: see ConfirmPause.
type PauseJob struct{ Reason string }

func (c PauseJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	switch {
	case !l.Exists():
		return nil, notFound("job")
	case l.State == JobPausedState, l.Pausing != nil && !l.Preempting && l.Live():
		return nil, nil
	case !l.Live():
		return nil, precondition("JOB_STATE", "the job is %s and cannot be paused", l.State)
	case l.Active():
		return JobPausing{JobPause{Reason: c.Reason, Time: now}}, l.mustLackResults()
	}
	return JobPaused{c.Reason, now}, l.mustLackResults()
}

// ConfirmPause makes a job that is being paused PAUSED, because none of its attempts is running any
// more. Attempt is the number of the job's newest attempt.
type ConfirmPause struct{ Attempt int }

func (c ConfirmPause) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	switch {
	case !l.Exists():
		return nil, notFound("job")
	case l.State == JobPausedState:
		return nil, nil
	case c.Attempt != l.Attempt:
		return nil, precondition("STALE_ATTEMPT", "attempt %d is over: the job is at attempt %d", c.Attempt, l.Attempt)
	case l.Pausing == nil || l.Preempting:
		return nil, precondition("JOB_STATE", "the job is %s and is not being paused", l.State)
	}
	return JobPaused{l.Pausing.Reason, now}, l.mustLackResults()
}

// ExpireJob ends the job once its deadline has passed.
type ExpireJob struct{}

func (ExpireJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	switch {
	case l.State == JobExpiredState:
		return nil, nil
	case !l.Exists():
		return nil, notFound("job")
	case l.Deadline == nil || now.Before(*l.Deadline):
		return nil, precondition("NOT_DUE", "the job's deadline has not passed yet, so the job cannot expire")
	case !l.Live() && l.State != JobPausedState:
		return nil, precondition("JOB_STATE", "the job is %s and cannot expire", l.State)
	}
	return JobExpired{now}, l.mustLackResults()
}

// ResumeJob queues a stopped job again; it resumes from its last checkpoint.
type ResumeJob struct{}

func (ResumeJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	if l.Deadline != nil && !now.Before(*l.Deadline) && l.State != JobExpiredState {
		return nil, precondition("DEADLINE_PASSED",
			"the job's deadline passed at %s: create another job, which can start from a promoted checkpoint of this job",
			l.Deadline.Format(time.RFC3339))
	}
	return JobResumed{now}, l.must(JobFailedState, JobCancelledState, JobPausedState)
}

// DeleteJob makes the job DELETING: its attempt is stopped, and then its files are deleted.
type DeleteJob struct{}

func (DeleteJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	switch {
	case !l.Exists():
		return nil, notFound("job")
	case l.Deleting():
		return nil, nil
	}
	return JobDeleting{now}, nil
}

// CleanJob records that no attempt of a deleted job is running any more, and that its files are
// being deleted.
type CleanJob struct{}

func (CleanJob) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	if l.State == JobCleaningUpState {
		return nil, nil
	}
	return JobCleaning{}, l.must(JobDeletingState)
}

// PurgeJob removes the job, because its files are deleted.
type PurgeJob struct{}

func (PurgeJob) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	return JobPurged{}, l.must(JobCleaningUpState)
}
