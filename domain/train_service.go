package domain

import "time"

// HasService reports whether the job offers a training service. The service of a job that has ended
// still lists its runs and checkpoints.
func (j TrainerJob) HasService() bool { return j.ServiceMode && j.Exists() && !j.Deleting() }

type TrainerServiceStarted struct {
	Time time.Time `json:"time"`
}

// Evolve puts a job that is IDLE into the queue like a new job.
func (e TrainerServiceStarted) Evolve(j *TrainerJob) {
	j.Serving = true
	if j.State != JobIdleState {
		return
	}
	j.arrive(e.Time)
	j.Work, j.Preemptions = 0, 0
	j.State, j.Status, j.Failures, j.Orphans, j.OrphanTime, j.Checkpoints = JobPendingState, StatusOf(nil), 0, 0, nil, nil
}

type TrainerServiceStopped struct {
	Attempt int       `json:"attempt"`
	Time    time.Time `json:"time"`
}

func (e TrainerServiceStopped) Evolve(j *TrainerJob) {
	j.end(e.Time)
	j.State, j.Status, j.Serving = JobIdleState, StatusOf(nil), false
}

// StartService starts the training service of a job with serviceMode, because a client uses it: the
// next attempt of the job executes the operations of training runs.
type StartService struct{}

func (StartService) Decide(j TrainerJob, now time.Time) (Event[TrainerJob], error) {
	switch {
	case !j.Exists():
		return nil, notFound("job")
	case !j.ServiceMode:
		return nil, precondition("NO_TRAINING_SERVICE",
			"the job has no serviceMode and offers no training service: create a job with serviceMode")
	case j.Serving && j.Live():
		return nil, nil
	case j.HasStep() && j.Live():
		return nil, precondition("STEP_UNDER_WAY", "the job is %s at train step %d: wait until it is %s", j.State,
			j.Step.Number, JobIdleState)
	}
	return TrainerServiceStarted{now}, j.must(JobCreatingState, JobValidatingState, JobIdleState)
}

// StopService stops the training service of a job and makes the job IDLE, because no client uses
// the service. Attempt is the number of the job's newest attempt, which must have saved its runs;
// it need not be running.
type StopService struct{ Attempt int }

func (c StopService) Decide(j TrainerJob, now time.Time) (Event[TrainerJob], error) {
	switch {
	case !j.Exists():
		return nil, notFound("job")
	case !j.Serving && j.State == JobIdleState:
		return nil, nil
	case !j.Serving:
		return nil, precondition("NOT_SERVING", "the job is %s and its attempt executes no operations of training runs",
			j.State)
	case c.Attempt != j.Attempt:
		return nil, precondition("STALE_ATTEMPT", "attempt %d is over: the job is at attempt %d", c.Attempt, j.Attempt)
	}
	return TrainerServiceStopped{c.Attempt, now}, j.must(JobPendingState, JobRunningState)
}
