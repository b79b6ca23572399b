package api

import (
	"anneal/domain"
	"anneal/projections"
)

// ReinforcementJob is a reinforcement fine-tuning job on the wire.
type ReinforcementJob struct {
	Name string `json:"name" api:"output"`
	domain.ReinforcementSpec
	TrackerConfig *TrackerConfig `json:"trackerConfig,omitempty"`
	JobReport
}

var reinforcementJobs = &resource[domain.ReinforcementJob, ReinforcementJob]{
	kind: domain.ReinforcementJobs, noun: "reinforcement fine-tuning job", idParam: "reinforcementFineTuningJobId", reads: toRead, writes: toWrite,
	fields: projections.FieldsOf[ReinforcementJob](),
	render: func(v *projections.View, row *projections.Row[domain.ReinforcementJob], out *ReinforcementJob) {
		j := &row.State
		*out = ReinforcementJob{Name: string(row.Name), ReinforcementSpec: j.ReinforcementSpec,
			TrackerConfig: shownTracker(j.ReinforcementSpec.TrackerConfig), JobReport: reportOf(v, row, &j.JobLife)}
	},
	prepare: prepareReinforcementJob,
	create: func(c *call, name domain.Name, given *ReinforcementJob) domain.Command[domain.ReinforcementJob] {
		spec := given.ReinforcementSpec
		spec.TrainingConfig, spec.TrackerConfig = trainingOf(spec.TrainingConfig), given.TrackerConfig.kept()
		spec.Purpose = specified(spec.Purpose)
		return domain.CreateReinforcementJob{ReinforcementSpec: spec, ID: name.ID(), CreatedBy: string(c.caller.key)}
	},
	remove: removeJob[domain.ReinforcementJob](domain.ReinforcementJobs),
	after:  shredTracker(func(j domain.ReinforcementJob) *domain.TrackerConfig { return j.ReinforcementSpec.TrackerConfig }),
}

func prepareReinforcementJob(c *call, name domain.Name, given *ReinforcementJob, _ map[string]string, v *domain.Violations) error {
	c.wantEvaluator(v, "evaluator", given.Evaluator)
	if s := given.BlobStoreConfig; s != nil {
		c.wantSecret(v, "blobStoreConfig.credentialsSecret", s.CredentialsSecret)
	}
	return c.wantInputs(v, name, jobInputs{prefix: "trainingConfig.", training: &given.TrainingConfig, dataset: given.Dataset,
		evaluation: given.EvaluationDataset, store: given.ObjectStoreConfig, tracker: given.TrackerConfig})
}
