package domain

import "time"

// A TrainStep is one round of training of a trainer job with keepAlive or serviceMode: the dataset
// to train on, and the model to create.
type TrainStep struct {
	Number      int    `json:"number"` // number of the train step, from 1
	Dataset     string `json:"dataset"`
	OutputModel string `json:"outputModel"` // ID of the model to create, in the job's account
}

// Waits reports whether the job waits for another train step after each train step, instead of
// completing.
func (s TrainerSpec) Waits() bool { return s.KeepAlive || s.ServiceMode }

// HasStep reports whether the job has a train step that is not finished.
func (j TrainerJob) HasStep() bool { return j.Step.Number > j.Finished }

// From returns the model that the train step starts from: the output of the previous step, or ""
// for the model in the job's settings (warmStartFrom or baseModel).
func (j TrainerJob) From() Name { return j.Output }

type TrainerStepGiven struct {
	TrainStep
	Time time.Time `json:"time,omitzero"` // when the job was queued; zero in events of earlier versions
}

// Evolve puts the job into the queue like a new job: before a train step starts, the job has no
// nodes, and the step does not resume from a checkpoint of the previous step.
func (e TrainerStepGiven) Evolve(j *TrainerJob) {
	j.Step = e.TrainStep
	j.arrive(e.Time)
	j.Work, j.Preemptions = 0, 0
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

// ExecuteTrainStep queues the next train step of a job that is IDLE. The caller checks that the
// dataset exists, and that the name of the output model is free.
type ExecuteTrainStep struct{ Dataset, OutputModel string }

func (c ExecuteTrainStep) Decide(j TrainerJob, now time.Time) (Event[TrainerJob], error) {
	if !j.Exists() {
		return nil, notFound("job")
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
		return nil, precondition("TAKES_NO_STEPS",
			"the job has neither keepAlive nor serviceMode and accepts no further steps: create another job, with the "+
				"output model of this job as warmStartFrom")
	case j.Serving && j.Live():
		return nil, precondition("SERVING", "the job is %s and executes the operations of training runs: wait until its "+
			"clients have ended their sessions and the job is %s, or use another job", j.State, JobIdleState)
	case j.HasStep() && j.Step == given && j.Live():
		return nil, nil
	case j.HasStep() && j.Live():
		return nil, precondition("STEP_UNDER_WAY", "the job is %s at train step %d: wait until it is %s", j.State,
			j.Step.Number, JobIdleState)
	}
	return TrainerStepGiven{step, now}, j.must(JobIdleState)
}

// FinishTrainStep records the result of a train step, and makes the job IDLE. After StoreResults,
// all fields but Attempt are ignored, because the outcome is stored already and its model is
// registered.
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
		return nil, precondition("TAKES_NO_STEPS", "the job has neither keepAlive nor serviceMode: it completes after its "+
			"first train step")
	}
	if j.Serving {
		return nil, precondition("SERVING", "the attempt executes the operations of training runs and has no train step")
	}
	return TrainerStepFinished{c.Attempt, c.Output, c.Results, now, c.Progress},
		j.must(JobRunningState, JobWritingResultsState)
}

// AwaitStep makes a job with keepAlive or serviceMode IDLE when it has no unfinished train step.
// The job then waits for ExecuteTrainStep.
type AwaitStep struct{}

func (AwaitStep) Decide(j TrainerJob, _ time.Time) (Event[TrainerJob], error) {
	switch {
	case !j.Exists():
		return nil, notFound("job")
	case j.State == JobIdleState && !j.Active():
		return nil, nil
	case j.Serving:
		return nil, precondition("SERVING", "a client uses the training service of the job: the job cannot become idle")
	case j.HasStep() || !j.Waits():
		return nil, precondition("STEP_TO_DO", "the job has train step %d to run and cannot become idle", j.Step.Number)
	}
	return TrainerAwaiting{}, j.must(JobValidatingState, JobPendingState)
}
