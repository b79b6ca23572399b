package api

import (
	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// TrainerJob is a reinforcement trainer job on the wire.
type TrainerJob struct {
	Name string `json:"name" api:"output"`
	domain.TrainerSpec
	TrainingConfig TrainingConfig `json:"trainingConfig"`
	TrackerConfig  *TrackerConfig `json:"trackerConfig,omitempty"`
	JobReport
	DirectRouteHandle string            `json:"directRouteHandle,omitempty" api:"output"`
	TrainStep         *domain.TrainStep `json:"trainStep,omitempty" api:"output"` // the newest that was given
}

var trainerJobs = &resource[domain.TrainerJob, TrainerJob]{
	kind: domain.TrainerJobs, noun: "reinforcement trainer job", idParam: "rlorTrainerJobId", reads: request.Read, writes: request.Write,
	fields: storedFieldsOf[domain.TrainerJob, TrainerJob]("name", "displayName", "dataset", "evaluationDataset",
		"keepAlive", "rolloutDeploymentName", "lossConfig", "nodeCount", "serviceMode", "hotLoadDeploymentId",
		"createTime", "updateTime", "completedTime", "state", "createdBy", "attempt"),
	render: func(v *projections.View, row *projections.Row[domain.TrainerJob], out *TrainerJob) {
		j := &row.State
		*out = TrainerJob{Name: string(row.Name), TrainerSpec: j.TrainerSpec, TrainingConfig: shownTraining(j.TrainerSpec.TrainingConfig),
			TrackerConfig: shownTracker(j.TrainerSpec.TrackerConfig), JobReport: reportOf(v, row, &row.State)}
		if j.Step.Number > 0 {
			out.TrainStep = &j.Step
		}
	},
	prepare: func(c *call, name domain.Name, given *TrainerJob, _ map[string]string, v *domain.Violations) error {
		c.wantTarget(v, "rolloutDeploymentName", given.RolloutDeploymentName)
		if id := given.HotLoadDeploymentID; domain.ValidID(id) {
			c.wantTarget(v, "hotLoadDeploymentId", string(domain.NewName(c.Account, domain.Deployments.Collection, id)))
		}
		return c.wantInputs(v, name, jobInputs{prefix: "trainingConfig.", training: &given.TrainingConfig.TrainingConfig, dataset: given.Dataset,
			evaluation: given.EvaluationDataset, store: given.ObjectStoreConfig, tracker: given.TrackerConfig})
	},
	create: func(c *call, name domain.Name, given *TrainerJob) domain.Command[domain.TrainerJob] {
		spec := given.TrainerSpec
		spec.TrainingConfig, spec.TrackerConfig = trainingOf(given.TrainingConfig.TrainingConfig), given.TrackerConfig.kept()
		return domain.CreateTrainerJob{TrainerSpec: spec, ID: name.ID(), CreatedBy: string(c.Principal.Key), Deadline: c.jobDeadline()}
	},
	addGiven: func(_ *call, given, out *TrainerJob) { out.TrackerConfig.withKeyOf(given.TrackerConfig) },
	remove:   removeJob[domain.TrainerJob](domain.TrainerJobs),
}

// wantTarget requires that a reference, when it is given and well formed, names
// a deployment of the account, and warns of one that takes no weights yet.
func (c *call) wantTarget(v *domain.Violations, field, ref string) {
	name, ok := domain.ParseName(ref, domain.Deployments.Collection)
	if !ok {
		return // the decision says what is wrong with its form
	}
	row, exists := c.View().Deployments.Get(name)
	v.Require(exists && name.Account() == c.Account, field, "names no deployment of accounts/%s: create it first, or correct the name", c.Account)
	if exists && name.Account() == c.Account && !row.State.EnableHotLoad {
		c.Warn("%s names %s, which has enableHotLoad turned off: it takes no weights until that is set", field, name)
	}
}
