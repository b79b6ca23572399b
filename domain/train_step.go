package domain

import "time"

// A TrainStep is one round of learning of a trainer job that is kept alive or
// in service: what it learns from, and the model that comes of it.
type TrainStep struct {
	Number      int    `json:"number"` // from 1
	Dataset     string `json:"dataset"`
	OutputModel string `json:"outputModel"` // an ID in the job's account
}

// Waits reports whether the job waits for steps instead of being done after one.
func (s TrainerSpec) Waits() bool { return s.KeepAlive || s.ServiceMode }

// HasStep reports whether the job was given something to learn from that it has
// not learnt yet.
func (j TrainerJob) HasStep() bool { return j.Step.Number > j.Finished }

// From is the model that the step begins with: that of the step before, or ""
// for what the job's settings name.
func (j TrainerJob) From() Name { return j.Output }

type TrainerStepGiven struct{ TrainStep }

// Evolve has the job wait for capacity, as a new one: a step takes no node
// before it begins, and resumes from no checkpoint of the one before.
func (e TrainerStepGiven) Evolve(j *TrainerJob) {
	j.Step = e.TrainStep
	j.State, j.Status, j.Failures, j.Orphans, j.OrphanTime, j.Checkpoints = JobPendingState, StatusOf(nil), 0, 0, nil, nil
}

type TrainerStepFinished struct {
	Attempt int       `json:"attempt"`
	Output  Name      `json:"output"`
	Results Files     `json:"results"`
	Time    time.Time `json:"time"`

	Progress *JobProgress `json:"progress,omitempty"`
}

func (e TrainerStepFinished) Evolve(j *TrainerJob) {
	j.end(e.Time)
	j.State, j.Status, j.Checkpoints, j.Outcome = JobIdleState, StatusOf(nil), nil, nil
	j.progressed(e.Progress)
	j.Output, j.Results, j.Finished = e.Output, e.Results, j.Step.Number
}

type TrainerAwaiting struct{}

func (TrainerAwaiting) Evolve(j *TrainerJob) { j.State, j.Status = JobIdleState, StatusOf(nil) }

// ExecuteTrainStep gives a step to a job that waits for one. Who asks makes
// sure that the dataset is there and that no model has the ID.
type ExecuteTrainStep struct{ Dataset, OutputModel string }

func (c ExecuteTrainStep) Decide(j TrainerJob, _ time.Time) (Event[TrainerJob], error) {
	if !j.Exists() {
		return nil, gone("job")
	}
	if name, ok := ParseName(c.OutputModel, "models"); ok {
		c.OutputModel = name.ID()
	}
	var v Violations
	v.Require(c.Dataset != "", "dataset", "is required")
	reference(&v, "dataset", c.Dataset, "datasets")
	v.Require(ValidID(c.OutputModel), "outputModel", IDRule)
	if err := v.Err(); err != nil {
		return nil, err
	}
	step := TrainStep{j.Step.Number + 1, c.Dataset, c.OutputModel}
	switch given := (TrainStep{j.Step.Number, c.Dataset, c.OutputModel}); {
	case !j.Waits():
		return nil, precondition("TAKES_NO_STEPS", "the job has neither keepAlive nor serviceMode and takes no further steps: create another, with this one's model as warmStartFrom")
	case j.HasStep() && j.Step == given && j.Live():
		return nil, nil
	case j.HasStep() && j.Live():
		return nil, precondition("STEP_UNDER_WAY", "the job is %s with step %d: wait until it is %s", j.State, j.Step.Number, JobIdleState)
	}
	return TrainerStepGiven{step}, j.must(JobIdleState)
}

// FinishTrainStep records what came of a step. With Attempt alone it is the
// outcome that was stored, whose model is registered by then.
type FinishTrainStep struct {
	Attempt  int
	Output   Name
	Results  Files
	Progress *JobProgress `json:",omitempty"`
}

func (c FinishTrainStep) Decide(j TrainerJob, now time.Time) (Event[TrainerJob], error) {
	if j.State == JobIdleState && j.Attempt == c.Attempt && !j.HasStep() {
		return nil, nil
	}
	if o := j.Outcome; o != nil && o.Attempt == c.Attempt {
		c = FinishTrainStep{o.Attempt, o.Output, o.Results, o.Progress}
	} else if err := j.fence(c.Attempt); err != nil {
		return nil, err
	}
	if !j.Waits() {
		return nil, precondition("TAKES_NO_STEPS", "the job is done after its first step: complete it")
	}
	return TrainerStepFinished{c.Attempt, c.Output, c.Results, now, c.Progress}, j.must(JobRunningState, JobWritingState)
}

// AwaitStep has a job that has nothing to learn from wait for its next step.
type AwaitStep struct{}

func (AwaitStep) Decide(j TrainerJob, _ time.Time) (Event[TrainerJob], error) {
	switch {
	case !j.Exists():
		return nil, gone("job")
	case j.State == JobIdleState && !j.Active():
		return nil, nil
	case j.HasStep() || !j.Waits():
		return nil, precondition("STEP_TO_DO", "the job has step %d to do", j.Step.Number)
	}
	return TrainerAwaiting{}, j.must(JobValidatingState, JobPendingState)
}
