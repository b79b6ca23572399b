package domain

import "time"

// A DPO job teaches a model to prefer one answer over another. Its states and
// most of its events are those of every job: see JobLives.
//
//	(none) --CreateDPOJob--> CREATING … as in JobLives
var DPOJobs = newJobKind("dpoJobs", "dpoJob", map[string]Event[DPOJob]{
	"dpoJob.created.v1": DPOJobCreated{},
}, func(j *DPOJob) *JobLife { return &j.JobLife })

// DPOSpec is what the caller sets. Its trainingConfig goes no further than
// learningRateWarmupSteps.
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
	return JobSpec{
		DisplayName: j.DisplayName, Method: MethodDPO, Shapes: preferenceShapes, MinRows: MinExamples, Dataset: j.Dataset,
		Config: j.TrainingConfig, ConfigField: "trainingConfig.", Loss: j.LossConfig, Tracker: j.TrackerConfig,
	}
}

var preferenceShapes = []string{ShapePreference}

// Uses implements User.
func (j DPOJob) Uses(Name) []string { return j.working(j.Spec().uses()) }

type DPOJobCreated struct {
	DPOSpec
	CreatedBy string     `json:"createdBy"`
	Deadline  *time.Time `json:"deadline,omitempty"`
}

func (e DPOJobCreated) Evolve(j *DPOJob) { *j = DPOJob{e.DPOSpec, newJobLife(e.CreatedBy, e.Deadline)} }

// CreateDPOJob makes a job. ID is the last part of its name.
type CreateDPOJob struct {
	DPOSpec
	ID        string
	CreatedBy string
	Deadline  *time.Time
}

func (c CreateDPOJob) Decide(j DPOJob, now time.Time) (Event[DPOJob], error) {
	if j.Exists() {
		return nil, exists("a DPO job")
	}
	var v Violations
	checkText(&v, c.DisplayName, "")
	checkData(&v, c.Dataset, "", false)
	v.Require(c.Dataset != "", "dataset", "is required")
	c.TrainingConfig.check(&v, "trainingConfig.")
	v.Require(c.TrainingConfig.BatchSizeSamples == 0, "trainingConfig.batchSizeSamples", "is not a setting of DPO jobs: leave it out")
	v.Require(c.TrainingConfig.OptimizerWeightDecay == 0, "trainingConfig.optimizerWeightDecay", "is not a setting of DPO jobs: leave it out")
	c.LossConfig.check(&v, preferenceLosses)
	c.TrackerConfig.check(&v)
	inFuture(&v, "deadline", c.Deadline, now)
	if err := v.Err(); err != nil {
		return nil, err
	}
	spec := c.DPOSpec
	spec.TrainingConfig, spec.LossConfig = spec.TrainingConfig.filled(c.ID), spec.LossConfig.filled(preferenceLosses)
	return DPOJobCreated{spec, c.CreatedBy, c.Deadline}, nil
}
