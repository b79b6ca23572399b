package domain

import "time"

// A supervised fine-tuning job teaches a model from examples. Its states and
// most of its events are those of every job: see JobLives.
//
//	(none) --CreateSupervisedJob--> CREATING … as in JobLives
var SupervisedJobs = newJobKind("supervisedFineTuningJobs", "supervisedFineTuningJob", map[string]Event[SupervisedJob]{
	"supervisedFineTuningJob.created.v1": SupervisedJobCreated{},
}, func(j *SupervisedJob) *JobLife { return &j.JobLife })

// SupervisedSpec is what the caller sets.
type SupervisedSpec struct {
	TrainingConfig
	DisplayName          string             `json:"displayName"`
	Dataset              string             `json:"dataset"`
	EvaluationDataset    string             `json:"evaluationDataset,omitempty"`
	EvalAutoCarveout     bool               `json:"evalAutoCarveout,omitempty"`
	EarlyStop            bool               `json:"earlyStop,omitempty"`
	IsTurbo              bool               `json:"isTurbo,omitempty"`
	Nodes                int                `json:"nodes,omitempty"`
	MTPEnabled           bool               `json:"mtpEnabled,omitempty"`
	MTPNumDraftTokens    int                `json:"mtpNumDraftTokens,omitempty"`
	MTPFreezeBaseModel   bool               `json:"mtpFreezeBaseModel,omitempty"`
	MetricsFileSignedURL string             `json:"metricsFileSignedUrl,omitempty"`
	TrackerConfig        *TrackerConfig     `json:"trackerConfig,omitempty"`
	ObjectStoreConfig    *ObjectStoreConfig `json:"objectStoreConfig,omitempty"`
}

// SupervisedJob is the state of one supervised fine-tuning job.
type SupervisedJob struct {
	SupervisedSpec `json:"spec"`
	JobLife        `json:"life"`
	EstimatedCost  *Money `json:"estimatedCost,omitempty"` // at its creation; nil when its rows were not known then
}

// Spec implements Job.
func (j SupervisedJob) Spec() JobSpec {
	return JobSpec{
		DisplayName: j.DisplayName, Method: MethodSupervised, Nodes: j.SupervisedSpec.Nodes,
		Shapes: supervisedShapes, MinRows: MinExamples, Dataset: j.Dataset, EvaluationDataset: j.EvaluationDataset,
		AutoCarveout: j.EvalAutoCarveout, Config: j.TrainingConfig, EarlyStop: j.EarlyStop,
		Tracker: j.TrackerConfig, Secrets: secretsOf(j.ObjectStoreConfig, nil),
	}
}

var supervisedShapes = []string{ShapeChat, ShapeCompletion}

// Uses implements User.
func (j SupervisedJob) Uses(Name) []string { return j.working(j.Spec().uses()) }

type SupervisedJobCreated struct {
	SupervisedSpec
	CreatedBy     string     `json:"createdBy"`
	Deadline      *time.Time `json:"deadline,omitempty"`
	EstimatedCost *Money     `json:"estimatedCost,omitempty"`
}

func (e SupervisedJobCreated) Evolve(j *SupervisedJob) {
	*j = SupervisedJob{e.SupervisedSpec, newJobLife(e.CreatedBy, e.Deadline), e.EstimatedCost}
}

// CreateSupervisedJob makes a job. ID is the last part of its name, which its
// model is called after unless outputModel says otherwise.
type CreateSupervisedJob struct {
	SupervisedSpec
	ID            string
	CreatedBy     string
	Deadline      *time.Time
	EstimatedCost *Money
}

func (c CreateSupervisedJob) Decide(j SupervisedJob, now time.Time) (Event[SupervisedJob], error) {
	if j.Exists() {
		return nil, exists("a supervised fine-tuning job")
	}
	v := c.check()
	inFuture(&v, "deadline", c.Deadline, now)
	if err := v.Err(); err != nil {
		return nil, err
	}
	spec := c.SupervisedSpec
	spec.TrainingConfig = spec.filled(c.ID)
	return SupervisedJobCreated{spec, c.CreatedBy, c.Deadline, c.EstimatedCost}, nil
}

func (s SupervisedSpec) check() Violations {
	var v Violations
	s.TrainingConfig.check(&v, "")
	checkText(&v, s.DisplayName, "")
	v.Require(s.Dataset != "", "dataset", "is required")
	checkData(&v, s.Dataset, s.EvaluationDataset, s.EvalAutoCarveout)
	v.Require(s.Nodes >= 0 && s.Nodes <= MaxJobNodes, "nodes", "must be from 0 (the default, 1) to %d", MaxJobNodes)
	v.Require(s.MTPNumDraftTokens >= 0 && s.MTPNumDraftTokens <= 64, "mtpNumDraftTokens", "must be from 0 to 64")
	s.TrackerConfig.check(&v)
	return v
}
