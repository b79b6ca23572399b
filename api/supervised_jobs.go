package api

import (
	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// SupervisedJob is a supervised fine-tuning job on the wire.
type SupervisedJob struct {
	Name string `json:"name" api:"output"`
	domain.SupervisedSpec
	TrackerConfig *TrackerConfig `json:"trackerConfig,omitempty"`
	EstimatedCost *domain.Money  `json:"estimatedCost,omitempty" api:"output"`
	TrainerLogs   string         `json:"trainerLogsSignedUrl,omitempty" api:"output"`
	JobReport
}

var supervisedJobs = &resource[domain.SupervisedJob, SupervisedJob]{
	kind: domain.SupervisedJobs, noun: "supervised fine-tuning job", requires: []string{"dataset"}, idParam: "supervisedFineTuningJobId",
	reads: request.Read, writes: request.Write,
	fields: storedFieldsOf[domain.SupervisedJob, SupervisedJob]("name", "displayName", "dataset", "evaluationDataset", "evalAutoCarveout",
		"outputModel", "baseModel", "warmStartFrom", "learningRate", "maxContextLength", "loraRank", "epochs", "batchSize", "earlyStop", "isTurbo",
		"createTime", "updateTime", "completedTime", "state", "createdBy", "attempt"),
	render:  renderSupervisedJob,
	prepare: prepareSupervisedJob,
	create: func(c *call, name domain.Name, given *SupervisedJob) domain.Command[domain.SupervisedJob] {
		spec := supervisedSpec(given)
		return domain.CreateSupervisedJob{SupervisedSpec: spec, ID: name.ID(), CreatedBy: string(c.Principal.Key), Deadline: c.jobDeadline(), EstimatedCost: c.cost(spec)}
	},
	addGiven: func(_ *call, given, out *SupervisedJob) { out.TrackerConfig.withKeyOf(given.TrackerConfig) },
	remove:   removeJob[domain.SupervisedJob](domain.SupervisedJobs),
}

func renderSupervisedJob(v *projections.View, row *projections.Row[domain.SupervisedJob], out *SupervisedJob) {
	j := &row.State
	*out = SupervisedJob{Name: string(row.Name), SupervisedSpec: j.SupervisedSpec, TrackerConfig: shownTracker(j.SupervisedSpec.TrackerConfig),
		EstimatedCost: j.EstimatedCost, JobReport: reportOf(v, row, &row.State)}
}

func prepareSupervisedJob(c *call, name domain.Name, given *SupervisedJob, _ map[string]string, v *domain.Violations) error {
	return c.wantInputs(v, name, supervisedInputs(given))
}

func supervisedInputs(given *SupervisedJob) jobInputs {
	return jobInputs{training: &given.TrainingConfig, dataset: given.Dataset, evaluation: given.EvaluationDataset,
		store: given.ObjectStoreConfig, tracker: given.TrackerConfig}
}

// supervisedSpec is what a request sets of a job.
func supervisedSpec(given *SupervisedJob) domain.SupervisedSpec {
	spec := given.SupervisedSpec
	spec.TrackerConfig = given.TrackerConfig.kept()
	spec.TrainingConfig = trainingOf(spec.TrainingConfig)
	return spec
}
