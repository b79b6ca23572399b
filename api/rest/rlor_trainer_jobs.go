package rest

import (
	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// TrainerJob is the wire type of a reinforcement trainer job.
type TrainerJob struct {
	Name string `json:"name" api:"output"`
	domain.TrainerSpec
	TrainingConfig TrainingConfig `json:"trainingConfig"`
	TrackerConfig  *TrackerConfig `json:"trackerConfig,omitempty"`
	JobReport
	DirectRouteHandle string            `json:"directRouteHandle,omitempty" api:"output"`
	TrainStep         *domain.TrainStep `json:"trainStep,omitempty" api:"output"` // latest train step; nil: none yet
}

var trainerJobs = &resource[domain.TrainerJob, TrainerJob]{
	kind: domain.TrainerJobs, noun: "reinforcement trainer job", idParam: "rlorTrainerJobId", reads: request.Read,
	writes: request.Write,
	fields: storedFieldsOf[domain.TrainerJob, TrainerJob]("name", "displayName", "dataset", "evaluationDataset",
		"keepAlive", "rolloutDeploymentName", "lossConfig", "nodeCount", "serviceMode", "hotLoadDeploymentId",
		"createTime", "updateTime", "completedTime", "state", "attempt"),
	local:     addServiceHandle,
	creator:   func(j *domain.TrainerJob) string { return j.CreatedBy },
	dependent: dependentOfJobs[domain.TrainerJob](),
	render: func(v *projections.View, row *projections.Row[domain.TrainerJob], out *TrainerJob) {
		j := &row.State
		*out = TrainerJob{Name: string(row.Name), TrainerSpec: j.TrainerSpec,
			TrainingConfig: renderTraining(j.TrainerSpec.TrainingConfig),
			TrackerConfig:  renderTracker(j.TrainerSpec.TrackerConfig, j.Tracking), JobReport: reportOf(v, row, &row.State)}
		if j.Step.Number > 0 {
			out.TrainStep = &j.Step
		}
	},
	create: func(c *call, q *creation[TrainerJob]) (plan[domain.TrainerJob, TrainerJob], error) {
		v, given := &q.p.Violations, q.given
		c.requireTarget(v, "rolloutDeploymentName", given.RolloutDeploymentName)
		if id := given.HotLoadDeploymentID; domain.ValidID(id) {
			c.requireTarget(v, "hotLoadDeploymentId", string(domain.NewName(c.Account, domain.Deployments.Collection, id)))
		}
		key, err := c.requireInputs(v, q.name, jobInputs{prefix: "trainingConfig.",
			training: &given.TrainingConfig.TrainingConfig, dataset: given.Dataset, evaluation: given.EvaluationDataset,
			store: given.ObjectStoreConfig, tracker: given.TrackerConfig})
		spec := given.TrainerSpec
		spec.TrainingConfig = trainingOf(given.TrainingConfig.TrainingConfig)
		spec.TrackerConfig = given.TrackerConfig.stored(key)
		return plan[domain.TrainerJob, TrainerJob]{
			command: domain.CreateTrainerJob{TrainerSpec: spec, ID: q.name.ID(), CreatedBy: string(c.Principal.Key),
				Deadline: jobDeadline(c)},
			respond: func(out *TrainerJob) { out.TrackerConfig.addKeyOf(given.TrackerConfig) },
		}, err
	},
	remove: removeJob[domain.TrainerJob](domain.TrainerJobs),
}

var _ = register(trainerJobs.operations, jobOperations(trainerJobs), trainStepOperations)

// requireTarget adds a violation if ref names a deployment that does not exist in the account. It
// ignores a malformed ref.
func (c *call) requireTarget(v *domain.Violations, field, ref string) {
	name, ok := domain.ParseName(ref, domain.Deployments.Collection)
	if !ok {
		return // the command's Decide rejects a malformed ref
	}
	_, exists := c.View().Deployments.Get(name)
	v.Require(exists && name.Account() == c.Account, field,
		"%s is not a deployment of accounts/%s: create it first, or correct the name", name, c.Account)
}
