package domain

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// A job's life is the part of its state that all kinds of jobs share.
//
//	(created)    CREATING
//	CREATING           --StartValidation--> VALIDATING
//	VALIDATING, PENDING, CREATING_INPUT_DATASET before any attempt --PrepareInput--> CREATING_INPUT_DATASET, with the datasets that are made of the job's own
//	VALIDATING, CREATING_INPUT_DATASET --QueueJob--> PENDING
//	VALIDATING, PENDING --HoldJob-->        the same, its status says what it waits for
//	PENDING            --StartJob-->        RUNNING, the next attempt
//	any                --AbandonAttempt-->  the same; the next attempt can no longer begin under its number
//	RUNNING            --RecordCheckpoint--> RUNNING
//	RUNNING            --IdleJob, WakeJob--> IDLE, RUNNING
//	RUNNING, IDLE      --WriteResults-->    WRITING_RESULTS
//	RUNNING, IDLE, WRITING_RESULTS --StoreResults--> WRITING_RESULTS, its attempt is over; the model is registered next
//	RUNNING, IDLE, WRITING_RESULTS --CompleteJob--> COMPLETED | EARLY_STOPPED
//	RUNNING, IDLE, WRITING_RESULTS --RequeueJob-->  RE_QUEUEING | FAILED after MaxFailures, or a CrashLoop
//	RE_QUEUEING        --QueueJob-->        PENDING
//	live               --FailJob-->         FAILED
//	live, PAUSED       --CancelJob-->       CANCELLING --ConfirmCancel--> CANCELLED
//	live               --PauseJob-->        PAUSED
//	live, PAUSED       --ExpireJob-->       EXPIRED
//	FAILED, CANCELLED, PAUSED --ResumeJob--> PENDING, from the last checkpoint
//	any                --DeleteJob-->       DELETING --CleanJob--> DELETING_CLEANING_UP --PurgeJob--> (none)
//
// What an attempt reports carries its number; a report of any but the current
// attempt is refused.
var JobLives = NewKind("jobs", map[string]Event[JobLife]{
	"validating.v1":    JobValidating{},
	"preparing.v1":     JobPreparing{},
	"queued.v1":        JobQueued{},
	"held.v1":          JobHeld{},
	"started.v1":       JobStarted{},
	"abandoned.v1":     JobAbandoned{},
	"checkpointed.v1":  JobCheckpointed{},
	"idled.v1":         JobIdled{},
	"woken.v1":         JobWoken{},
	"writing.v1":       JobWriting{},
	"resultsStored.v1": JobResultsStored{},
	"completed.v1":     JobCompleted{},
	"requeued.v1":      JobRequeued{},
	"failed.v1":        JobFailed{},
	"cancelling.v1":    JobCancelling{},
	"cancelled.v1":     JobCancelled{},
	"paused.v1":        JobPaused{},
	"expired.v1":       JobExpired{},
	"resumed.v1":       JobResumed{},
	"deleting.v1":      JobDeleting{},
	"cleaning.v1":      JobCleaning{},
	"purged.v1":        JobPurged{},
})

// Job states.
const (
	JobCreatingState   = "JOB_STATE_CREATING"
	JobValidatingState = "JOB_STATE_VALIDATING"
	JobPreparingState  = "JOB_STATE_CREATING_INPUT_DATASET"
	JobPendingState    = "JOB_STATE_PENDING"
	JobRunningState    = "JOB_STATE_RUNNING"
	JobIdleState       = "JOB_STATE_IDLE"
	JobWritingState    = "JOB_STATE_WRITING_RESULTS"
	JobCompletedState  = "JOB_STATE_COMPLETED"
	JobEarlyState      = "JOB_STATE_EARLY_STOPPED"
	JobRequeueState    = "JOB_STATE_RE_QUEUEING"
	JobFailedState     = "JOB_STATE_FAILED"
	JobCancellingState = "JOB_STATE_CANCELLING"
	JobCancelledState  = "JOB_STATE_CANCELLED"
	JobPausedState     = "JOB_STATE_PAUSED"
	JobExpiredState    = "JOB_STATE_EXPIRED"
	JobDeletingState   = "JOB_STATE_DELETING"
	JobCleaningState   = "JOB_STATE_DELETING_CLEANING_UP"
)

// MaxFailures is how many attempts may fail before the job does; a preempted
// attempt does not count.
const MaxFailures = 3

// CrashLoop is how long a job may lose attempts together with their control
// plane, MaxFailures at least and without a checkpoint between them, before it
// fails: its training may be what ends the process. A control plane that is
// killed again and again for other reasons fails no job before that.
const CrashLoop = 10 * time.Minute

// MaxCheckpoints is how many checkpoints a job remembers; older ones are let go.
const MaxCheckpoints = 16

// A JobCheckpoint is a checkpoint of training from which a job continues.
type JobCheckpoint struct {
	Step    int                `json:"step"`
	Attempt int                `json:"attempt"`
	Time    time.Time          `json:"time"`
	Files   Files              `json:"files"`
	Metrics map[string]float64 `json:"metrics,omitempty"`
}

// JobProgress is how far a job was when a checkpoint of it, or what came of it,
// was recorded: it outlives the processes that received its reports.
type JobProgress struct {
	Step    int                `json:"step"`
	Steps   int                `json:"steps"` // expected in all
	Epoch   float64            `json:"epoch"`
	Tokens  int64              `json:"tokens"`            // learnt from
	Metrics map[string]float64 `json:"metrics,omitempty"` // of that step
}

// JobInputs are the datasets that are made of a job's own, and that it then
// learns from and is measured on.
type JobInputs struct {
	Train      Name `json:"train"`
	Evaluation Name `json:"evaluation"`
}

// JobLife is the state that all kinds of jobs share.
type JobLife struct {
	State             string           `json:"state"`
	Status            Status           `json:"status"`
	CreatedBy         string           `json:"createdBy"`
	CompletedTime     *time.Time       `json:"completedTime,omitempty"`
	CancelTime        *time.Time       `json:"cancelTime,omitempty"` // of the request to stop
	Deadline          *time.Time       `json:"deadline,omitempty"`
	Inputs            *JobInputs       `json:"inputs,omitempty"`
	Attempt           int              `json:"attempt"`              // number of the newest attempt, 0 before the first
	Abandoned         int              `json:"abandoned,omitempty"`  // number of the newest attempt that was given up before it began
	Failures          int              `json:"failures"`             // attempts that count against MaxFailures
	Orphans           int              `json:"orphans,omitempty"`    // attempts since the last checkpoint that ended with their control plane
	OrphanTime        *time.Time       `json:"orphanTime,omitempty"` // when the first of them ended
	Nodes             []Name           `json:"nodes,omitempty"`      // of the current attempt; empty when none is live
	Takes             Resources        `json:"takes"`                // what the current attempt holds on each node
	StartTime         *time.Time       `json:"startTime,omitempty"`
	Checkpoints       []JobCheckpoint  `json:"checkpoints,omitempty"` // oldest first
	Seconds           map[string]int64 `json:"seconds,omitempty"`     // accelerator type → seconds spent
	Progress          *JobProgress     `json:"progress,omitempty"`    // the newest that is recorded
	Outcome           *JobOutcome      `json:"outcome,omitempty"`     // of an attempt whose model is being registered
	Output            Name             `json:"output,omitempty"`      // the model that came of it
	Results           Files            `json:"results"`
	EvaluatorRevision int              `json:"evaluatorRevision,omitempty"` // revision of the evaluator that the job began with, and keeps
}

func newJobLife(createdBy string, deadline *time.Time) JobLife {
	return JobLife{State: JobCreatingState, Status: StatusOf(nil), CreatedBy: createdBy, Deadline: deadline}
}

// Exists implements State, also for the job that the life is part of.
func (l JobLife) Exists() bool { return l.State != "" }

// Stage implements Staged, also for the job that the life is part of.
func (l JobLife) Stage() string { return l.State }

// Life implements Job for the job that the life is part of.
func (l *JobLife) Life() *JobLife { return l }

// Active reports whether an attempt is, or may be, at work on a node.
func (l JobLife) Active() bool {
	return len(l.Nodes) > 0
}

// Working reports whether the current attempt should be at work.
func (l JobLife) Working() bool {
	return l.State == JobRunningState || l.State == JobIdleState || l.State == JobWritingState
}

// Terminal reports whether the job has ended; FAILED and CANCELLED may be resumed.
func (l JobLife) Terminal() bool {
	switch l.State {
	case JobCompletedState, JobEarlyState, JobFailedState, JobCancelledState, JobExpiredState:
		return true
	}
	return false
}

// Live reports whether the job may still make progress by itself.
func (l JobLife) Live() bool {
	return l.Exists() && !l.Terminal() && l.State != JobPausedState && l.State != JobCancellingState && !l.Leaving()
}

// Leaving reports whether the job is being deleted.
func (l JobLife) Leaving() bool { return l.State == JobDeletingState || l.State == JobCleaningState }

// NextAttempt is the number of the attempt that begins next. A number that was
// abandoned is never used again: allocations that carry it may still be placed.
func (l JobLife) NextAttempt() int { return max(l.Attempt, l.Abandoned) + 1 }

// LastCheckpoint is where the next attempt continues.
func (l JobLife) LastCheckpoint() (JobCheckpoint, bool) {
	if len(l.Checkpoints) == 0 {
		return JobCheckpoint{}, false
	}
	return l.Checkpoints[len(l.Checkpoints)-1], true
}

// AllocationID names the allocation of one attempt.
func AllocationID(job Name, attempt int) string { return fmt.Sprintf("%s@%d", job, attempt) }

// end closes the attempt: its time is counted and its nodes are let go.
func (l *JobLife) end(at time.Time) {
	if l.StartTime != nil && len(l.Nodes) > 0 {
		l.Seconds = maps.Clone(l.Seconds)
		if l.Seconds == nil {
			l.Seconds = map[string]int64{}
		}
		spent := int64(max(at.Sub(*l.StartTime), 0).Seconds())
		for t, n := range l.Takes.Accelerators {
			l.Seconds[t] += spent * int64(n) * int64(len(l.Nodes))
		}
		if len(l.Takes.Accelerators) == 0 {
			l.Seconds["CPU"] += spent * int64(len(l.Nodes))
		}
	}
	l.Nodes, l.StartTime, l.Takes = nil, nil, Resources{}
}

func (l *JobLife) conclude(state string, status Status, at time.Time) {
	l.end(at)
	l.State, l.Status, l.CompletedTime, l.Outcome = state, status, &at, nil
}

type JobValidating struct{}

func (JobValidating) Evolve(l *JobLife) { l.State = JobValidatingState }

type JobPreparing struct {
	Inputs *JobInputs `json:"inputs,omitempty"`
}

func (e JobPreparing) Evolve(l *JobLife) {
	l.State, l.Inputs = JobPreparingState, e.Inputs
}

type JobQueued struct{}

func (JobQueued) Evolve(l *JobLife) { l.State = JobPendingState }

type JobHeld struct {
	Status Status `json:"status"`
}

func (e JobHeld) Evolve(l *JobLife) { l.Status = e.Status }

type JobStarted struct {
	Attempt int       `json:"attempt"`
	Nodes   []Name    `json:"nodes"`
	Takes   Resources `json:"takes"`
	Time    time.Time `json:"time"`

	EvaluatorRevision int `json:"evaluatorRevision,omitempty"`
}

func (e JobStarted) Evolve(l *JobLife) {
	l.State, l.Status, l.Attempt, l.Nodes, l.Takes, l.StartTime = JobRunningState, StatusOf(nil), e.Attempt, e.Nodes, e.Takes, &e.Time
	l.EvaluatorRevision = e.EvaluatorRevision
}

// JobAbandoned fences an attempt that did not begin: its number is used up, so
// that a late start of it is refused and its allocations can be released.
type JobAbandoned struct {
	Attempt int    `json:"attempt"`
	Reason  string `json:"reason"`
}

func (e JobAbandoned) Evolve(l *JobLife) { l.Abandoned = max(l.Abandoned, e.Attempt) }

type JobCheckpointed struct {
	JobCheckpoint
	Progress *JobProgress `json:"progress,omitempty"`
}

func (e JobCheckpointed) Evolve(l *JobLife) {
	l.progressed(e.Progress)
	l.Orphans, l.OrphanTime = 0, nil
	l.Checkpoints = append(slices.Clone(l.Checkpoints), e.JobCheckpoint)
	if extra := len(l.Checkpoints) - MaxCheckpoints; extra > 0 {
		l.Checkpoints = l.Checkpoints[extra:]
	}
}

type JobIdled struct {
	Attempt int `json:"attempt"`
}

func (JobIdled) Evolve(l *JobLife) { l.State = JobIdleState }

type JobWoken struct {
	Attempt int `json:"attempt"`
}

func (JobWoken) Evolve(l *JobLife) { l.State = JobRunningState }

type JobWriting struct {
	Attempt int `json:"attempt"`
}

func (JobWriting) Evolve(l *JobLife) { l.State = JobWritingState }

// A JobOutcome is what came of an attempt, and the model that it becomes.
type JobOutcome struct {
	Attempt      int             `json:"attempt"`
	StoppedEarly bool            `json:"stoppedEarly"`
	Reason       string          `json:"reason,omitempty"` // why it did
	Output       Name            `json:"output"`
	Results      Files           `json:"results"`
	Model        ModelRegistered `json:"model"`
	Progress     *JobProgress    `json:"progress,omitempty"`
}

// JobResultsStored ends the attempt. It holds all that is left to be done: the
// model is registered, and then the job completes.
type JobResultsStored struct {
	JobOutcome
	Time time.Time `json:"time"`
}

func (e JobResultsStored) Evolve(l *JobLife) {
	l.end(e.Time)
	l.progressed(e.Progress)
	l.State, l.Outcome = JobWritingState, &e.JobOutcome
}

type JobCompleted struct {
	Attempt      int       `json:"attempt"`
	StoppedEarly bool      `json:"stoppedEarly"`
	Reason       string    `json:"reason,omitempty"` // why it did
	Output       Name      `json:"output,omitempty"`
	Results      Files     `json:"results"`
	Time         time.Time `json:"time"`

	Progress *JobProgress `json:"progress,omitempty"`
}

// progressed notes how far the job is, if that was reported.
func (l *JobLife) progressed(at *JobProgress) {
	if at != nil {
		l.Progress = at
	}
}

func (e JobCompleted) Evolve(l *JobLife) {
	l.progressed(e.Progress)
	state, status := JobCompletedState, StatusOf(nil)
	if e.StoppedEarly {
		state, status.Message = JobEarlyState, e.Reason
	}
	l.Output, l.Results = e.Output, e.Results
	l.conclude(state, status, e.Time)
}

type JobRequeued struct {
	Attempt int       `json:"attempt"`
	Reason  string    `json:"reason"`
	Counted bool      `json:"counted"`
	Orphan  bool      `json:"orphan,omitempty"`
	Time    time.Time `json:"time"`
}

func (e JobRequeued) Evolve(l *JobLife) {
	l.end(e.Time)
	l.State, l.Status = JobRequeueState, Status{Unavailable.String(), e.Reason}
	if e.Counted {
		l.Failures++
	}
	if e.Orphan {
		if l.Orphans == 0 {
			l.OrphanTime = &e.Time
		}
		l.Orphans++
	}
}

type JobFailed struct {
	Attempt int       `json:"attempt"`
	Status  Status    `json:"status"`
	Time    time.Time `json:"time"`
}

func (e JobFailed) Evolve(l *JobLife) { l.conclude(JobFailedState, e.Status, e.Time) }

type JobCancelling struct {
	Time time.Time `json:"time"`
}

func (e JobCancelling) Evolve(l *JobLife) { l.State, l.CancelTime = JobCancellingState, &e.Time }

type JobCancelled struct {
	Attempt int       `json:"attempt"`
	Time    time.Time `json:"time"`
}

func (e JobCancelled) Evolve(l *JobLife) {
	l.conclude(JobCancelledState, Status{Canceled.String(), "cancelled by its user"}, e.Time)
}

type JobPaused struct {
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

func (e JobPaused) Evolve(l *JobLife) {
	l.end(e.Time)
	l.State, l.Status = JobPausedState, Status{FailedPrecondition.String(), e.Reason}
}

type JobExpired struct {
	Time time.Time `json:"time"`
}

func (e JobExpired) Evolve(l *JobLife) {
	l.conclude(JobExpiredState, Status{DeadlineExceeded.String(), "the job's deadline has passed"}, e.Time)
}

type JobResumed struct{}

func (JobResumed) Evolve(l *JobLife) {
	l.State, l.Status, l.Failures, l.Orphans, l.OrphanTime, l.CompletedTime = JobPendingState, StatusOf(nil), 0, 0, nil, nil
}

type JobDeleting struct {
	Time time.Time `json:"time"`
}

func (e JobDeleting) Evolve(l *JobLife) {
	l.end(e.Time)
	l.State, l.Outcome = JobDeletingState, nil
}

type JobCleaning struct{}

func (JobCleaning) Evolve(l *JobLife) { l.State = JobCleaningState }

// JobPurged ends the resource, and with the life the whole that it is part of.
type JobPurged struct{}

func (JobPurged) Evolve(l *JobLife) { *l = JobLife{} }
