package rest

import (
	"encoding/json"
	"slices"
	"strings"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// ReinforcementJob is the wire type of a reinforcement fine-tuning job.
type ReinforcementJob struct {
	Name string `json:"name" api:"output"`
	domain.ReinforcementSpec
	TrainingConfig TrainingConfig `json:"trainingConfig"`
	TrackerConfig  *TrackerConfig `json:"trackerConfig,omitempty"`
	JobReport
	EvaluatorRevision int    `json:"evaluatorRevision,omitempty" api:"output"` // chosen when the job starts; 0 before
	OutputStats       string `json:"outputStats,omitempty" api:"output"`
	TrainerLogs       string `json:"trainerLogsSignedUrl,omitempty" api:"output"`
}

var reinforcementJobs = &resource[domain.ReinforcementJob, ReinforcementJob]{
	kind: domain.ReinforcementJobs, noun: "reinforcement fine-tuning job", requires: []string{"dataset", "evaluator"},
	idParam: "reinforcementFineTuningJobId", reads: request.Read, writes: request.Write,
	fields: storedFieldsOf[domain.ReinforcementJob, ReinforcementJob]("name", "displayName", "dataset", "evaluator",
		"evaluationDataset",
		"chunkSize", "nodeCount", "lossConfig", "purpose",
		"createTime", "updateTime", "completedTime", "state", "attempt"),
	local:     addQueue[domain.ReinforcementJob, ReinforcementJob],
	creator:   func(j *domain.ReinforcementJob) string { return j.CreatedBy },
	dependent: dependentOfJobs[domain.ReinforcementJob]("outputStats"),
	render: func(v *projections.View, row *projections.Row[domain.ReinforcementJob], out *ReinforcementJob) {
		j := &row.State
		*out = ReinforcementJob{Name: string(row.Name), ReinforcementSpec: j.ReinforcementSpec,
			TrainingConfig:    renderTraining(j.ReinforcementSpec.TrainingConfig),
			TrackerConfig:     renderTracker(j.ReinforcementSpec.TrackerConfig, j.Tracking),
			JobReport:         reportOf(v, row, &row.State),
			EvaluatorRevision: j.EvaluatorRevision}
		out.OutputStats = outputStats(out.JobProgress, j.SelectedMetrics())
	},
	create: func(c *call, q *creation[ReinforcementJob]) (plan[domain.ReinforcementJob, ReinforcementJob], error) {
		given := q.given
		c.requireEvaluator(&q.p.Violations, "evaluator", given.Evaluator)
		if s := given.BlobStoreConfig; s != nil {
			c.requireSecret(&q.p.Violations, "blobStoreConfig.credentialsSecret", s.CredentialsSecret)
		}
		key, err := c.requireInputs(&q.p.Violations, q.name, jobInputs{prefix: "trainingConfig.",
			training: &given.TrainingConfig.TrainingConfig, dataset: given.Dataset, evaluation: given.EvaluationDataset,
			store: given.ObjectStoreConfig, tracker: given.TrackerConfig, options: q.options})
		spec := given.ReinforcementSpec
		spec.TrainingConfig = trainingOf(given.TrainingConfig.TrainingConfig)
		spec.TrackerConfig, spec.Purpose = given.TrackerConfig.stored(key), wire.Specified(spec.Purpose)
		return plan[domain.ReinforcementJob, ReinforcementJob]{
			command: domain.CreateReinforcementJob{ReinforcementSpec: spec, ID: q.name.ID(),
				CreatedBy: string(c.Principal.Key), Deadline: jobDeadline(c), Options: q.options},
			respond: func(out *ReinforcementJob) { out.TrackerConfig.addKeyOf(given.TrackerConfig) },
		}, err
	},
	remove: removeJob[domain.ReinforcementJob](domain.ReinforcementJobs),
	single: func(c *call, row *projections.Row[domain.ReinforcementJob], out *ReinforcementJob) (err error) {
		out.TrainerLogs, err = signedLog(c, row.Name, row.CreateEvent, row.State.Attempt)
		return err
	},
}

var _ = register(reinforcementJobs.operations, jobOperations(reinforcementJobs), rolloutOperations)

// outputStats returns, as JSON text, the newest values of the metrics that a job's outputMetrics
// selects: see domain.ReinforcementSpec.SelectedMetrics. It returns "" until the job has reported
// one of them.
func outputStats(p *JobProgress, selected []string) string {
	stats := map[string]float64{}
	if p != nil {
		for name, value := range p.Metrics {
			if slices.ContainsFunc(selected, func(one string) bool {
				return one == name || strings.HasSuffix(one, "/") && strings.HasPrefix(name, one)
			}) {
				stats[name] = value
			}
		}
	}
	if len(stats) == 0 {
		return ""
	}
	text, _ := json.Marshal(stats) // metrics are finite, so encoding never fails
	return string(text)
}
