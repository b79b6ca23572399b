package domain

import "time"

// A DPO job trains a model to prefer one response over another. JobLives describes its states and
// most of its events.
//
//	(none) --CreateDPOJob--> CREATING … as in JobLives
var DPOJobs = newJobKind("dpoJobs", "dpoJob", map[string]Event[DPOJob]{
	"dpoJob.created.v1": DPOJobCreated{},
}, func(j *DPOJob) *JobLife { return &j.JobLife })

// DPOSpec holds the fields of a DPO job that the caller sets. DPO jobs do not support the fields
// batchSizeSamples and optimizerWeightDecay of trainingConfig.
type DPOSpec struct {
	DisplayName    string         `json:"displayName"`
	Dataset        string         `json:"dataset"`
	TrainingConfig TrainingConfig `json:"trainingConfig"`
	LossConfig     *LossConfig    `json:"lossConfig,omitempty"`
	TrackerConfig  *TrackerConfig `json:"trackerConfig,omitempty"`
}

// DPOJob is the state of one DPO job.
type DPOJob struct {
	DPOSpec `json:"spec"`
	JobLife `json:"life"`
}

// Spec implements Job.
func (j DPOJob) Spec() JobSpec {
	spec := JobSpec{
		DisplayName: j.DisplayName, Method: MethodDPO, Shapes: preferenceShapes, MinRows: MinExamples, Dataset: j.Dataset,
		Config: j.TrainingConfig, ConfigField: "trainingConfig.", Loss: j.LossConfig, Tracker: j.TrackerConfig,
	}
	j.Options.apply(&spec)
	return spec
}

var preferenceShapes = []string{ShapePreference}

// References implements Referrer.
func (j DPOJob) References(Name) []string { return j.activeReferences(j.Spec().references()) }

type DPOJobCreated struct {
	DPOSpec
	CreatedBy string      `json:"createdBy"`
	Deadline  *time.Time  `json:"deadline,omitempty"`
	Options   *JobOptions `json:"options,omitempty"`
}

func (e DPOJobCreated) Evolve(j *DPOJob) {
	*j = DPOJob{e.DPOSpec, newJobLife(e.CreatedBy, e.Deadline).withOptions(e.Options)}
}

// CreateDPOJob creates a job. ID is the last part of the job's name.
type CreateDPOJob struct {
	DPOSpec
	ID        string
	CreatedBy string
	Deadline  *time.Time
	Options   *JobOptions
}

func (c CreateDPOJob) Decide(j DPOJob, now time.Time) (Event[DPOJob], error) {
	if j.Exists() {
		return nil, alreadyExists("a DPO job")
	}
	var v Violations
	checkText(&v, c.DisplayName, "")
	c.Options.check(&v, c.TrainingConfig)
	checkData(&v, c.Dataset, "", false)
	v.Require(c.Dataset != "", "dataset", "is required")
	c.TrainingConfig.check(&v, "trainingConfig.")
	v.Require(c.TrainingConfig.BatchSizeSamples == 0, "trainingConfig.batchSizeSamples",
		"is not supported by DPO jobs: leave it out")
	v.Require(c.TrainingConfig.OptimizerWeightDecay == 0, "trainingConfig.optimizerWeightDecay",
		"is not supported by DPO jobs: leave it out")
	c.LossConfig.check(&v, preferenceLosses)
	c.TrackerConfig.check(&v)
	inFuture(&v, "deadline", c.Deadline, now)
	if err := v.Err(); err != nil {
		return nil, err
	}
	spec := c.DPOSpec
	spec.TrainingConfig, spec.LossConfig = spec.TrainingConfig.withDefaults(c.ID),
		spec.LossConfig.withDefaults(preferenceLosses)
	return DPOJobCreated{spec, c.CreatedBy, c.Deadline, c.Options}, nil
}
