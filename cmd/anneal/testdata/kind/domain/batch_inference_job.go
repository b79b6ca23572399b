package domain

import "time"

// A batch inference job generates a response to each row of a dataset. JobLives describes its
// states and most of its events.
//
//	(none) --CreateBatchInferenceJob--> CREATING … as in JobLives
var BatchInferenceJobs = newJobKind("batchInferenceJobs", "batchInferenceJob", map[string]Event[BatchInferenceJob]{
	"batchInferenceJob.created.v1": BatchInferenceJobCreated{},
}, func(j *BatchInferenceJob) *JobLife { return &j.JobLife })

// BatchInferenceSpec has the fields that the client sets.
type BatchInferenceSpec struct {
	DisplayName string `json:"displayName"`
	Dataset     string `json:"dataset"`
	Model       string `json:"model"`
}

// BatchInferenceJob is the state of one batch inference job.
type BatchInferenceJob struct {
	BatchInferenceSpec `json:"spec"`
	JobLife            `json:"life"`
}

// Spec implements Job.
func (j BatchInferenceJob) Spec() JobSpec {
	return JobSpec{DisplayName: j.DisplayName, Method: "batch", Shapes: supervisedShapes, MinRows: 1, Dataset: j.Dataset,
		Config: TrainingConfig{BaseModel: j.Model}}
}

// References implements Referrer.
func (j BatchInferenceJob) References(Name) []string {
	return j.activeReferences(j.Spec().references())
}

// BatchInferenceJobCreated records a new job.
type BatchInferenceJobCreated struct {
	BatchInferenceSpec
	CreatedBy string     `json:"createdBy"`
	Deadline  *time.Time `json:"deadline,omitempty"`
}

// Evolve implements Event.
func (e BatchInferenceJobCreated) Evolve(j *BatchInferenceJob) {
	*j = BatchInferenceJob{e.BatchInferenceSpec, newJobLife(e.CreatedBy, e.Deadline)}
}

// CreateBatchInferenceJob creates a job.
type CreateBatchInferenceJob struct {
	BatchInferenceSpec
	CreatedBy string
	Deadline  *time.Time
}

// Decide implements Command.
func (c CreateBatchInferenceJob) Decide(j BatchInferenceJob, now time.Time) (Event[BatchInferenceJob], error) {
	if j.Exists() {
		return nil, alreadyExists("a batch inference job")
	}
	var v Violations
	checkText(&v, c.DisplayName, "")
	v.Require(c.Dataset != "", "dataset", "is required")
	v.Require(c.Model != "", "model", "is required")
	inFuture(&v, "deadline", c.Deadline, now)
	if err := v.Err(); err != nil {
		return nil, err
	}
	return BatchInferenceJobCreated(c), nil
}
