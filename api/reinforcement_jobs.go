package api

import (
	"encoding/json"
	"strings"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// ReinforcementJob is a reinforcement fine-tuning job on the wire.
type ReinforcementJob struct {
	Name string `json:"name" api:"output"`
	domain.ReinforcementSpec
	TrainingConfig TrainingConfig `json:"trainingConfig"`
	TrackerConfig  *TrackerConfig `json:"trackerConfig,omitempty"`
	JobReport
	EvaluatorRevision int    `json:"evaluatorRevision,omitempty" api:"output"` // that it began with, and keeps
	OutputStats       string `json:"outputStats,omitempty" api:"output"`
	TrainerLogs       string `json:"trainerLogsSignedUrl,omitempty" api:"output"`
}

var reinforcementJobs = &resource[domain.ReinforcementJob, ReinforcementJob]{
	kind: domain.ReinforcementJobs, noun: "reinforcement fine-tuning job", requires: []string{"dataset", "evaluator"}, idParam: "reinforcementFineTuningJobId", reads: request.Read, writes: request.Write,
	fields: storedFieldsOf[domain.ReinforcementJob, ReinforcementJob]("name", "displayName", "dataset", "evaluator", "evaluationDataset",
		"chunkSize", "nodeCount", "lossConfig", "purpose",
		"createTime", "updateTime", "completedTime", "state", "createdBy", "attempt"),
	render: func(v *projections.View, row *projections.Row[domain.ReinforcementJob], out *ReinforcementJob) {
		j := &row.State
		*out = ReinforcementJob{Name: string(row.Name), ReinforcementSpec: j.ReinforcementSpec, TrainingConfig: shownTraining(j.ReinforcementSpec.TrainingConfig),
			TrackerConfig: shownTracker(j.ReinforcementSpec.TrackerConfig), JobReport: reportOf(v, row, &row.State), EvaluatorRevision: j.EvaluatorRevision}
		out.OutputStats = outputStats(out.JobProgress)
	},
	prepare: prepareReinforcementJob,
	create: func(c *call, name domain.Name, given *ReinforcementJob) domain.Command[domain.ReinforcementJob] {
		spec := given.ReinforcementSpec
		spec.TrainingConfig, spec.TrackerConfig = trainingOf(given.TrainingConfig.TrainingConfig), given.TrackerConfig.kept()
		spec.Purpose = wire.Specified(spec.Purpose)
		return domain.CreateReinforcementJob{ReinforcementSpec: spec, ID: name.ID(), CreatedBy: string(c.Principal.Key), Deadline: c.jobDeadline()}
	},
	addGiven: func(_ *call, given, out *ReinforcementJob) { out.TrackerConfig.withKeyOf(given.TrackerConfig) },
	remove:   removeJob[domain.ReinforcementJob](domain.ReinforcementJobs),
}

// outputStats are the newest figures of a job's answers and their scores, as
// the text of a JSON object.
func outputStats(p *JobProgress) string {
	stats := map[string]float64{}
	if p != nil {
		for name, value := range p.Metrics {
			if strings.HasPrefix(name, "reward/") || strings.HasPrefix(name, "rollout/") {
				stats[name] = value
			}
		}
	}
	if len(stats) == 0 {
		return ""
	}
	text, _ := json.Marshal(stats) // figures of metrics are finite
	return string(text)
}

func prepareReinforcementJob(c *call, name domain.Name, given *ReinforcementJob, _ map[string]string, v *domain.Violations) error {
	c.wantEvaluator(v, "evaluator", given.Evaluator)
	if s := given.BlobStoreConfig; s != nil {
		c.wantSecret(v, "blobStoreConfig.credentialsSecret", s.CredentialsSecret)
	}
	return c.wantInputs(v, name, jobInputs{prefix: "trainingConfig.", training: &given.TrainingConfig.TrainingConfig, dataset: given.Dataset,
		evaluation: given.EvaluationDataset, store: given.ObjectStoreConfig, tracker: given.TrackerConfig})
}
