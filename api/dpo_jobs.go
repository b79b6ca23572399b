package api

import (
	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// DPOJob is a DPO job on the wire.
type DPOJob struct {
	Name string `json:"name" api:"output"`
	domain.DPOSpec
	TrainingConfig DPOTraining    `json:"trainingConfig"`
	TrackerConfig  *TrackerConfig `json:"trackerConfig,omitempty"`
	JobReport
}

// DPOTraining is what a DPO job may set of its training.
type DPOTraining struct {
	OutputModel               string  `json:"outputModel,omitempty"`
	BaseModel                 string  `json:"baseModel,omitempty"`
	WarmStartFrom             string  `json:"warmStartFrom,omitempty"`
	JinjaTemplate             string  `json:"jinjaTemplate,omitempty"`
	LearningRate              float64 `json:"learningRate,omitempty"`
	MaxContextLength          int     `json:"maxContextLength,omitempty"`
	LoraRank                  *int    `json:"loraRank,omitempty"`
	Region                    string  `json:"region,omitempty"`
	Epochs                    int     `json:"epochs,omitempty"`
	BatchSize                 int     `json:"batchSize,omitempty"` // tokens in one gradient batch
	GradientAccumulationSteps int     `json:"gradientAccumulationSteps,omitempty"`
	LearningRateWarmupSteps   int     `json:"learningRateWarmupSteps,omitempty"`
	TrainingFacts
}

func (t DPOTraining) config() domain.TrainingConfig {
	return trainingOf(domain.TrainingConfig{OutputModel: t.OutputModel, BaseModel: t.BaseModel, WarmStartFrom: t.WarmStartFrom, JinjaTemplate: t.JinjaTemplate,
		LearningRate: t.LearningRate, MaxContextLength: t.MaxContextLength, LoraRank: t.LoraRank, Region: t.Region, Epochs: t.Epochs, BatchSize: t.BatchSize,
		GradientAccumulationSteps: t.GradientAccumulationSteps, LearningRateWarmupSteps: t.LearningRateWarmupSteps})
}

func dpoTraining(t domain.TrainingConfig) DPOTraining {
	return DPOTraining{t.OutputModel, t.BaseModel, t.WarmStartFrom, t.JinjaTemplate, t.LearningRate, t.MaxContextLength, t.LoraRank,
		t.Region, t.Epochs, t.BatchSize, t.GradientAccumulationSteps, t.LearningRateWarmupSteps, trainingFacts(t)}
}

// warnOfCache tells of settings that change nothing: a trainer sizes itself what
// it computes of the reference.
func (c *call) warnOfCache(loss *domain.LossConfig) {
	if loss == nil || loss.DPO == nil {
		return
	}
	const unused = "lossConfig.dpo.%s: kept, but unused: the trainer computes what the reference says before the first step, in passes that it sizes itself"
	if loss.DPO.RefCacheBatchSize > 0 {
		c.Warn(unused, "refCacheBatchSize")
	}
	if loss.DPO.RefCacheConcurrency > 0 {
		c.Warn(unused, "refCacheConcurrency")
	}
}

var dpoJobs = &resource[domain.DPOJob, DPOJob]{
	kind: domain.DPOJobs, noun: "DPO job", requires: []string{"dataset"}, idParam: "dpoJobId", reads: request.Read, writes: request.Write,
	fields: storedFieldsOf[domain.DPOJob, DPOJob]("name", "displayName", "dataset", "lossConfig",
		"createTime", "updateTime", "completedTime", "state", "createdBy", "attempt"),
	render: func(v *projections.View, row *projections.Row[domain.DPOJob], out *DPOJob) {
		j := &row.State
		*out = DPOJob{Name: string(row.Name), DPOSpec: j.DPOSpec, TrainingConfig: dpoTraining(j.DPOSpec.TrainingConfig),
			TrackerConfig: shownTracker(j.DPOSpec.TrackerConfig), JobReport: reportOf(v, row, &row.State)}
	},
	prepare: func(c *call, name domain.Name, given *DPOJob, _ map[string]string, v *domain.Violations) error {
		c.warnOfCache(given.LossConfig)
		training := given.TrainingConfig.config()
		return c.wantInputs(v, name, jobInputs{prefix: "trainingConfig.", training: &training, dataset: given.Dataset, tracker: given.TrackerConfig})
	},
	create: func(c *call, name domain.Name, given *DPOJob) domain.Command[domain.DPOJob] {
		spec := given.DPOSpec
		spec.TrainingConfig, spec.TrackerConfig = given.TrainingConfig.config(), given.TrackerConfig.kept()
		return domain.CreateDPOJob{DPOSpec: spec, ID: name.ID(), CreatedBy: string(c.Principal.Key), Deadline: c.jobDeadline()}
	},
	addGiven: func(_ *call, given, out *DPOJob) { out.TrackerConfig.withKeyOf(given.TrackerConfig) },
	remove:   removeJob[domain.DPOJob](domain.DPOJobs),
}
