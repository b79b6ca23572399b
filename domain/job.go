package domain

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// The lifecycle that all kinds of jobs share.
//
//	(created)          CREATING
//	CREATING           --StartValidation-->  VALIDATING, unless the job can be queued at once
//	not yet started    --PrepareInput-->     CREATING_INPUT_DATASET: inputs are being derived
//	CREATING, VALIDATING, CREATING_INPUT_DATASET --QueueJob--> PENDING
//	VALIDATING, PENDING --HoldJob-->         unchanged; the status says what the job waits for
//	PENDING            --StartJob-->         RUNNING, the next attempt
//	CREATING, VALIDATING --StartJob-->       RUNNING, if there is capacity when the job is validated
//	any                --AbandonAttempt-->   unchanged; the attempt's number is not used again
//	any                --RecordCheckpoint--> unchanged, while an attempt is running
//	RUNNING, IDLE      --WriteResults-->     WRITING_RESULTS
//	working            --StoreResults-->     WRITING_RESULTS: the model is registered next
//	working            --CompleteJob-->      COMPLETED | EARLY_STOPPED
//	working            --RequeueJob-->       RE_QUEUEING | FAILED after MaxFailures or a CrashLoop
//	RE_QUEUEING        --QueueJob-->         PENDING
//	live               --FailJob-->          FAILED
//	live, PAUSED       --CancelJob-->        CANCELLING --ConfirmCancel--> CANCELLED
//	live               --PauseJob-->         PAUSED, or unchanged while an attempt is running
//	pausing            --ConfirmPause-->     PAUSED, when the attempt has stopped
//	working            --PreemptJob-->       unchanged, until RequeueJob when the attempt has stopped
//	live, PAUSED       --ExpireJob-->        EXPIRED
//	FAILED, CANCELLED, PAUSED --ResumeJob--> PENDING, from the last checkpoint
//	any                --RecordTracking-->   unchanged
//	any                --DeleteJob-->        DELETING --CleanJob--> DELETING_CLEANING_UP
//	DELETING_CLEANING_UP --PurgeJob-->       (none)
//
// "not yet started" means VALIDATING, PENDING and CREATING_INPUT_DATASET before the first attempt.
// "working" means RUNNING, IDLE and WRITING_RESULTS. A job is "pausing" from PauseJob until its
// attempt has saved a checkpoint and stopped.
//
// A report of an attempt carries the attempt's number and is refused unless that attempt is the
// current one.
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
	"pausing.v1":       JobPausing{},
	"preempting.v1":    JobPreempting{},
	"paused.v1":        JobPaused{},
	"expired.v1":       JobExpired{},
	"resumed.v1":       JobResumed{},
	"deleting.v1":      JobDeleting{},
	"cleaning.v1":      JobCleaning{},
	"purged.v1":        JobPurged{},
	"tracked.v1":       JobTracked{},
	"prioritized.v1":   JobPrioritized{},
})

// Job states.
const (
	JobCreatingState       = "JOB_STATE_CREATING"
	JobValidatingState     = "JOB_STATE_VALIDATING"
	JobCreatingInputState  = "JOB_STATE_CREATING_INPUT_DATASET"
	JobPendingState        = "JOB_STATE_PENDING"
	JobRunningState        = "JOB_STATE_RUNNING"
	JobIdleState           = "JOB_STATE_IDLE"
	JobWritingResultsState = "JOB_STATE_WRITING_RESULTS"
	JobCompletedState      = "JOB_STATE_COMPLETED"
	JobEarlyStoppedState   = "JOB_STATE_EARLY_STOPPED"
	JobReQueueingState     = "JOB_STATE_RE_QUEUEING"
	JobFailedState         = "JOB_STATE_FAILED"
	JobCancellingState     = "JOB_STATE_CANCELLING"
	JobCancelledState      = "JOB_STATE_CANCELLED"
	JobPausedState         = "JOB_STATE_PAUSED"
	JobExpiredState        = "JOB_STATE_EXPIRED"
	JobDeletingState       = "JOB_STATE_DELETING"
	JobCleaningUpState     = "JOB_STATE_DELETING_CLEANING_UP"
)

// MaxFailures is the number of failed attempts after which a job fails. A preempted attempt does
// not count as failed.
const MaxFailures = 3

// CrashLoop is the duration after which a crash loop fails a job. In a crash loop, at least
// MaxFailures consecutive attempts end together with their control plane, without a checkpoint in
// between, so the training may be what crashes the process. A shorter series of restarts does not
// fail the job.
const CrashLoop = 10 * time.Minute

// MaxCheckpoints is how many checkpoints a job keeps; older ones are deleted.
const MaxCheckpoints = 16

// A JobCheckpoint is a training checkpoint from which a job can resume.
type JobCheckpoint struct {
	Step    int                `json:"step"`
	Attempt int                `json:"attempt"`
	Time    time.Time          `json:"time"`
	Files   Files              `json:"files"`
	Metrics map[string]float64 `json:"metrics,omitempty"`
}

// JobProgress is the progress of a job when a checkpoint or a result was recorded. Unlike live
// status, it survives restarts of the control plane.
type JobProgress struct {
	Step    int                `json:"step"`
	Steps   int                `json:"steps"` // total number of training steps that the job is expected to take
	Epoch   float64            `json:"epoch"`
	Tokens  int64              `json:"tokens"`            // number of tokens that the job has trained on
	Metrics map[string]float64 `json:"metrics,omitempty"` // latest values of the metrics at Step
}

// JobInputs are the names of the two datasets that are derived from the job's dataset: one for
// training, one for evaluation.
type JobInputs struct {
	Train      Name `json:"train"`
	Evaluation Name `json:"evaluation"`
}

// A JobPause is a request to pause a job whose attempt is running.
type JobPause struct {
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

// JobLife is the lifecycle state that all kinds of jobs share.
type JobLife struct {
	State         string     `json:"state"`
	Status        Status     `json:"status"`
	CreatedBy     string     `json:"createdBy"`
	CompletedTime *time.Time `json:"completedTime,omitempty"`
	CancelTime    *time.Time `json:"cancelTime,omitempty"` // when the cancellation was requested; nil without a request
	Pausing       *JobPause  `json:"pausing,omitempty"`    // request to stop the running attempt; nil if there is none
	Preempting    bool       `json:"preempting,omitempty"` // the request in Pausing is a preemption: see PreemptJob
	Deadline      *time.Time `json:"deadline,omitempty"`
	Inputs        *JobInputs `json:"inputs,omitempty"`
	Attempt       int        `json:"attempt"` // number of the newest attempt, 0 before the first
	// number of the newest attempt that was abandoned: see AbandonAttempt
	Abandoned int `json:"abandoned,omitempty"`
	Failures  int `json:"failures"` // number of failed attempts, which MaxFailures limits
	// consecutive attempts since the last checkpoint that ended together with their control plane
	Orphans    int        `json:"orphans,omitempty"`
	OrphanTime *time.Time `json:"orphanTime,omitempty"` // when the first attempt that Orphans counts ended
	// names of the nodes of the running attempt; empty without one
	Nodes       []Name           `json:"nodes,omitempty"`
	Resources   Resources        `json:"takes"` // resources that the attempt has on each of Nodes
	StartTime   *time.Time       `json:"startTime,omitempty"`
	Checkpoints []JobCheckpoint  `json:"checkpoints,omitempty"` // stored checkpoints, oldest first
	Seconds     map[string]int64 `json:"seconds,omitempty"`     // device seconds of ended attempts, by device type
	Progress    *JobProgress     `json:"progress,omitempty"`    // progress at the newest checkpoint or result
	// stored results whose model is not registered yet; otherwise nil
	Outcome *JobOutcome `json:"outcome,omitempty"`
	Output  Name        `json:"output,omitempty"` // name of the resulting model; "" before there is one
	Results Files       `json:"results"`
	// revision of the evaluator that the first attempt started with; all attempts use that revision
	EvaluatorRevision int          `json:"evaluatorRevision,omitempty"`
	Tracking          *JobTracking `json:"tracking,omitempty"` // the job's run in an experiment tracker; nil without one

	Options  *JobOptions `json:"options,omitempty"`
	Priority JobPriority `json:"priority,omitempty"` // priority in the queue; "" stands for PriorityNormal

	// when the job first entered the queue; nil if an earlier version recorded that without a time
	Arrival     *time.Time `json:"arrival,omitempty"`
	Work        int64      `json:"work,omitempty"` // seconds of training that are saved in the last checkpoint
	Preemptions int        `json:"preemptions,omitempty"`
	// other jobs were preempted to make room for this job's next attempt
	Promised  bool       `json:"promised,omitempty"`
	QueueTime *time.Time `json:"queueTime,omitempty"` // since when a PENDING job has been in the queue
	Wait      *JobWait   `json:"wait,omitempty"`      // the current wait for capacity; nil if there is none
}

func newJobLife(createdBy string, deadline *time.Time) JobLife {
	return JobLife{State: JobCreatingState, Status: StatusOf(nil), CreatedBy: createdBy, Deadline: deadline}
}

// Exists implements State, also for jobs that embed JobLife.
func (l JobLife) Exists() bool { return l.State != "" }

// StateName implements StateNamer, also for jobs that embed JobLife.
func (l JobLife) StateName() string { return l.State }

// Life implements Job.Life for jobs that embed JobLife.
func (l *JobLife) Life() *JobLife { return l }

// Active reports whether an attempt is running, or may be running, on a node.
func (l JobLife) Active() bool {
	return len(l.Nodes) > 0
}

// Working reports whether the current attempt of the job should be running on its nodes.
func (l JobLife) Working() bool {
	return l.State == JobRunningState || l.State == JobIdleState || l.State == JobWritingResultsState
}

// Terminal reports whether the job has ended. FAILED and CANCELLED jobs can be resumed.
func (l JobLife) Terminal() bool {
	switch l.State {
	case JobCompletedState, JobEarlyStoppedState, JobFailedState, JobCancelledState, JobExpiredState:
		return true
	}
	return false
}

// Unfinished reports whether schedulers or coordinators may still have to act on the job. It is
// false once the job has ended, its attempt has stopped, and its results are registered.
func (l JobLife) Unfinished() bool { return !l.Terminal() || l.Active() || l.Outcome != nil }

// Live reports whether the job can make progress without another request of its user.
func (l JobLife) Live() bool {
	return l.Exists() && !l.Terminal() && l.State != JobPausedState && l.State != JobCancellingState && !l.Deleting()
}

// Stopping reports whether the running attempt must save a checkpoint and stop, because the job is
// being cancelled, paused or preempted.
func (l JobLife) Stopping() bool { return l.State == JobCancellingState || l.Pausing != nil }

// ConfirmStop returns the command that records that the attempt of a job that is Stopping has
// stopped.
func (l JobLife) ConfirmStop(attempt int) Command[JobLife] {
	switch {
	case l.State == JobCancellingState || l.Pausing == nil:
	case l.Preempting:
		return RequeueJob{Attempt: attempt, Reason: l.Pausing.Reason, Preempted: true}
	default:
		return ConfirmPause{attempt}
	}
	return ConfirmCancel{attempt}
}

// Deleting reports whether the job is being deleted.
func (l JobLife) Deleting() bool { return l.State == JobDeletingState || l.State == JobCleaningUpState }

// NextAttempt returns the number of the next attempt. The number of an abandoned attempt is never
// used again, because allocations for that attempt may still be placed.
func (l JobLife) NextAttempt() int { return max(l.Attempt, l.Abandoned) + 1 }

// LastCheckpoint returns the checkpoint from which the next attempt resumes; false when there is
// none.
func (l JobLife) LastCheckpoint() (JobCheckpoint, bool) {
	if len(l.Checkpoints) == 0 {
		return JobCheckpoint{}, false
	}
	return l.Checkpoints[len(l.Checkpoints)-1], true
}

// AllocationID returns the ID of an attempt's allocations.
func AllocationID(job Name, attempt int) string { return fmt.Sprintf("%s@%d", job, attempt) }

// end ends the current attempt at the given time: it adds the attempt's device seconds to Seconds
// and clears Nodes.
func (l *JobLife) end(now time.Time) {
	if l.StartTime != nil && len(l.Nodes) > 0 {
		l.Seconds = maps.Clone(l.Seconds)
		if l.Seconds == nil {
			l.Seconds = map[string]int64{}
		}
		spent := int64(max(now.Sub(*l.StartTime), 0).Seconds())
		for t, n := range l.Resources.Accelerators {
			l.Seconds[t] += spent * int64(n) * int64(len(l.Nodes))
		}
		if len(l.Resources.Accelerators) == 0 {
			l.Seconds["CPU"] += spent * int64(len(l.Nodes))
		}
	}
	l.Nodes, l.StartTime, l.Resources, l.Pausing = nil, nil, Resources{}, nil
	l.Preempting, l.Promised, l.QueueTime, l.Wait = false, false, nil, nil
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
	l.State, l.Inputs = JobCreatingInputState, e.Inputs
}

// JobAbandoned records that an attempt will not start. The attempt's number is never used again, so
// a late start is refused, and its allocations can be released.
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
	l.worked(e.Time)
	l.Checkpoints = append(slices.Clone(l.Checkpoints), e.JobCheckpoint)
	if extra := len(l.Checkpoints) - MaxCheckpoints; extra > 0 {
		l.Checkpoints = l.Checkpoints[extra:]
	}
}

// JobIdled says that the running attempt of a trainer job with keepAlive waits for the next train
// step. No command records it any more, because each train step is an attempt of its own (see
// TrainerJobs), but logs of earlier versions may contain it.
type JobIdled struct {
	Attempt int `json:"attempt"`
}

func (JobIdled) Evolve(l *JobLife) { l.State = JobIdleState }

// JobWoken says that the attempt after JobIdled received a train step. Like JobIdled, it is not
// recorded any more.
type JobWoken struct {
	Attempt int `json:"attempt"`
}

func (JobWoken) Evolve(l *JobLife) { l.State = JobRunningState }

type JobWriting struct {
	Attempt int `json:"attempt"`
}

func (JobWriting) Evolve(l *JobLife) { l.State = JobWritingResultsState }

// A JobOutcome is the result of an attempt, and the model to be registered from it.
type JobOutcome struct {
	Attempt      int             `json:"attempt"`
	StoppedEarly bool            `json:"stoppedEarly"`
	Reason       string          `json:"reason,omitempty"` // why training stopped early; "" if it did not
	Output       Name            `json:"output"`
	Results      Files           `json:"results"`
	Model        ModelRegistered `json:"model"`
	Progress     *JobProgress    `json:"progress,omitempty"`
}

// JobResultsStored ends the attempt, whose results are stored. It contains everything that is
// needed to register the model and then complete the job.
type JobResultsStored struct {
	JobOutcome
	Time time.Time `json:"time"`
}

func (e JobResultsStored) Evolve(l *JobLife) {
	l.end(e.Time)
	l.progressed(e.Progress)
	l.State, l.Outcome = JobWritingResultsState, &e.JobOutcome
}

type JobCompleted struct {
	Attempt      int       `json:"attempt"`
	StoppedEarly bool      `json:"stoppedEarly"`
	Reason       string    `json:"reason,omitempty"` // why training stopped early; "" if it did not
	Output       Name      `json:"output,omitempty"`
	Results      Files     `json:"results"`
	Time         time.Time `json:"time"`

	Progress *JobProgress `json:"progress,omitempty"`
}

// progressed sets the job's progress to progress; nil changes nothing.
func (l *JobLife) progressed(progress *JobProgress) {
	if progress != nil {
		l.Progress = progress
	}
}

func (e JobCompleted) Evolve(l *JobLife) {
	l.progressed(e.Progress)
	state, status := JobCompletedState, StatusOf(nil)
	if e.StoppedEarly {
		state, status.Message = JobEarlyStoppedState, e.Reason
	}
	l.Output, l.Results = e.Output, e.Results
	l.conclude(state, status, e.Time)
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

func (e JobCancelling) Evolve(l *JobLife) {
	l.State, l.CancelTime, l.Pausing = JobCancellingState, &e.Time, nil
}

type JobCancelled struct {
	Attempt int       `json:"attempt"`
	Time    time.Time `json:"time"`
}

func (e JobCancelled) Evolve(l *JobLife) {
	l.conclude(JobCancelledState, Status{Canceled.String(), "cancelled by a user"}, e.Time)
}

// JobPausing requests that the running attempt saves a checkpoint and stops.
type JobPausing struct{ JobPause }

func (e JobPausing) Evolve(l *JobLife) {
	l.Pausing, l.Preempting, l.Status = &e.JobPause, false, Status{FailedPrecondition.String(), e.Reason}
}

type JobPaused struct {
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

func (e JobPaused) Evolve(l *JobLife) {
	l.end(e.Time)
	l.State, l.Pausing, l.Status = JobPausedState, nil, Status{FailedPrecondition.String(), e.Reason}
}

type JobExpired struct {
	Time time.Time `json:"time"`
}

func (e JobExpired) Evolve(l *JobLife) {
	l.conclude(JobExpiredState, Status{DeadlineExceeded.String(), "the job's deadline has passed"}, e.Time)
}

type JobResumed struct {
	Time time.Time `json:"time,omitzero"` // when the job was queued; zero in events of earlier versions
}

func (e JobResumed) Evolve(l *JobLife) {
	l.arrive(e.Time)
	// The deadline in the queue is Arrival + Work + a constant. Subtract Work from Arrival, so that
	// a resumed job gets the same deadline as a new job.
	if l.Arrival != nil {
		arrival := l.Arrival.Add(-time.Duration(l.Work) * time.Second)
		l.Arrival = &arrival
	}
	l.Promised, l.Preemptions = false, 0
	l.State, l.Status, l.Failures, l.Orphans, l.OrphanTime, l.CompletedTime = JobPendingState, StatusOf(nil), 0, 0, nil,
		nil
}

type JobDeleting struct {
	Time time.Time `json:"time"`
}

func (e JobDeleting) Evolve(l *JobLife) {
	l.end(e.Time)
	l.State, l.Outcome = JobDeletingState, nil
}

type JobCleaning struct{}

func (JobCleaning) Evolve(l *JobLife) { l.State = JobCleaningUpState }

// JobPurged removes the job: lifted.Evolve clears the whole state, because JobLife does not exist
// after this event.
type JobPurged struct{}

func (JobPurged) Evolve(l *JobLife) { *l = JobLife{} }
