package rest

import (
	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// SupervisedJob is the wire type of a supervised fine-tuning job.
type SupervisedJob struct {
	Name string `json:"name" api:"output"`
	domain.SupervisedSpec
	TrackerConfig *TrackerConfig `json:"trackerConfig,omitempty"`
	EstimatedCost *domain.Money  `json:"estimatedCost,omitempty" api:"output"`
	TrainerLogs   string         `json:"trainerLogsSignedUrl,omitempty" api:"output"`
	JobReport
}

var supervisedJobs = &resource[domain.SupervisedJob, SupervisedJob]{
	kind: domain.SupervisedJobs, noun: "supervised fine-tuning job", requires: []string{"dataset"},
	idParam: "supervisedFineTuningJobId",
	reads:   request.Read, writes: request.Write,
	fields: storedFieldsOf[domain.SupervisedJob, SupervisedJob]("name", "displayName", "dataset", "evaluationDataset",
		"evalAutoCarveout",
		"outputModel", "baseModel", "warmStartFrom", "learningRate", "maxContextLength", "loraRank", "epochs", "batchSize",
		"earlyStop", "isTurbo", "replayWeight",
		"createTime", "updateTime", "completedTime", "state", "attempt"),
	local:     addQueue[domain.SupervisedJob, SupervisedJob],
	creator:   func(j *domain.SupervisedJob) string { return j.CreatedBy },
	dependent: dependentOfJobs[domain.SupervisedJob](),
	render:    renderSupervisedJob,
	create: func(c *call, q *creation[SupervisedJob]) (plan[domain.SupervisedJob, SupervisedJob], error) {
		key, err := c.requireInputs(&q.p.Violations, q.name, supervisedInputs(q.given, q.options))
		if err != nil {
			return plan[domain.SupervisedJob, SupervisedJob]{}, err
		}
		url, err := c.sealURL(&q.p.Violations, q.name, q.given.MetricsFileSignedURL)
		spec := supervisedSpec(q.given, key)
		return plan[domain.SupervisedJob, SupervisedJob]{
			command: domain.CreateSupervisedJob{SupervisedSpec: spec, ID: q.name.ID(), CreatedBy: string(c.Principal.Key),
				Deadline: jobDeadline(c), EstimatedCost: estimatedCost(c, spec), SealedMetricsURL: url,
				Options: q.options},
			respond: func(out *SupervisedJob) { out.TrackerConfig.addKeyOf(q.given.TrackerConfig) },
		}, err
	},
	remove: removeJob[domain.SupervisedJob](domain.SupervisedJobs),
	single: func(c *call, row *projections.Row[domain.SupervisedJob], out *SupervisedJob) (err error) {
		out.TrainerLogs, err = signedLog(c, row.Name, row.CreateEvent, row.State.Attempt)
		return err
	},
}

var _ = register(supervisedJobs.operations, jobOperations(supervisedJobs), estimateOperations)

func renderSupervisedJob(v *projections.View, row *projections.Row[domain.SupervisedJob], out *SupervisedJob) {
	j := &row.State
	*out = SupervisedJob{Name: string(row.Name), SupervisedSpec: j.SupervisedSpec,
		TrackerConfig: renderTracker(j.SupervisedSpec.TrackerConfig, j.Tracking),
		EstimatedCost: j.EstimatedCost, JobReport: reportOf(v, row, &row.State)}
	out.MetricsFileSignedURL = out.MetricsFileSignedURL.Address()
}

func supervisedInputs(given *SupervisedJob, options *domain.JobOptions) jobInputs {
	return jobInputs{training: &given.TrainingConfig, dataset: given.Dataset, evaluation: given.EvaluationDataset,
		store: given.ObjectStoreConfig, tracker: given.TrackerConfig, options: options}
}

// supervisedSpec returns the settings of a job in the form in which the log has them. trackerKey is
// the encrypted API key for the tracker, or nil.
func supervisedSpec(given *SupervisedJob, trackerKey *domain.Sealed) domain.SupervisedSpec {
	spec := given.SupervisedSpec
	spec.TrackerConfig = given.TrackerConfig.stored(trackerKey)
	spec.TrainingConfig = trainingOf(spec.TrainingConfig)
	return spec
}
