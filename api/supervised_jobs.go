package api

import (
	"anneal/domain"
	"anneal/projections"
)

// SupervisedJob is a supervised fine-tuning job on the wire.
type SupervisedJob struct {
	Name string `json:"name" api:"output"`
	domain.SupervisedSpec
	TrackerConfig *TrackerConfig `json:"trackerConfig,omitempty"`
	JobReport
}

var supervisedJobs = &resource[domain.SupervisedJob, SupervisedJob]{
	kind: domain.SupervisedJobs, noun: "supervised fine-tuning job", idParam: "supervisedFineTuningJobId",
	reads: toRead, writes: toWrite,
	fields:  projections.FieldsOf[SupervisedJob](),
	render:  renderSupervisedJob,
	prepare: prepareSupervisedJob,
	create: func(c *call, name domain.Name, given *SupervisedJob) domain.Command[domain.SupervisedJob] {
		spec := given.SupervisedSpec
		spec.TrackerConfig = given.TrackerConfig.kept()
		spec.Region = specified(spec.Region)
		return domain.CreateSupervisedJob{SupervisedSpec: spec, ID: name.ID(), CreatedBy: string(c.caller.key)}
	},
	remove: removeJob[domain.SupervisedJob](domain.SupervisedJobs),
	after:  shredTracker(func(j domain.SupervisedJob) *domain.TrackerConfig { return j.SupervisedSpec.TrackerConfig }),
}

func renderSupervisedJob(v *projections.View, row *projections.Row[domain.SupervisedJob], out *SupervisedJob) {
	j := &row.State
	*out = SupervisedJob{Name: string(row.Name), SupervisedSpec: j.SupervisedSpec, TrackerConfig: shownTracker(j.SupervisedSpec.TrackerConfig),
		JobReport: reportOf(v, row, &j.JobLife)}
}

func prepareSupervisedJob(c *call, name domain.Name, given *SupervisedJob, _ map[string]string, v *domain.Violations) error {
	return c.wantInputs(v, name, jobInputs{training: &given.TrainingConfig, dataset: given.Dataset, evaluation: given.EvaluationDataset,
		store: given.ObjectStoreConfig, tracker: given.TrackerConfig})
}
