package domain

import (
	"regexp"
	"strings"
	"time"
)

// A reinforcement fine-tuning job lets a model complete prompts, has an evaluator score the
// completions, and trains the model toward higher scores. JobLives describes its states and most of
// its events.
//
//	(none) --CreateReinforcementJob--> CREATING … as in JobLives
var ReinforcementJobs = newJobKind("reinforcementFineTuningJobs", "reinforcementFineTuningJob",
	map[string]Event[ReinforcementJob]{
		"reinforcementFineTuningJob.created.v1": ReinforcementJobCreated{},
	}, func(j *ReinforcementJob) *JobLife { return &j.JobLife })

// PurposePilot is the purpose of a trial job, which gets capacity after all other pending jobs.
const PurposePilot = "PURPOSE_PILOT"

// Defaults and limits of reinforcement jobs. chunkSize has an effect only if the dataset has more
// than ChunkedAbove rows.
const (
	DefaultChunkSize = 200
	MaxChunkSize     = 10_000
	ChunkedAbove     = 300
	MaxConcurrent    = 10_000 // limit of maxConcurrentRollouts, and of maxConcurrentEvaluations
	MaxStaleness     = 4      // limit of maxStaleness, in chunks
)

// ReinforcementSpec holds the fields of a reinforcement fine-tuning job that the caller sets.
type ReinforcementSpec struct {
	DisplayName         string               `json:"displayName"`
	Dataset             string               `json:"dataset"`
	Evaluator           string               `json:"evaluator"`
	EvaluationDataset   string               `json:"evaluationDataset,omitempty"`
	EvalAutoCarveout    bool                 `json:"evalAutoCarveout,omitempty"`
	TrainingConfig      TrainingConfig       `json:"trainingConfig"`
	TrackerConfig       *TrackerConfig       `json:"trackerConfig,omitempty"`
	ObjectStoreConfig   *ObjectStoreConfig   `json:"objectStoreConfig,omitempty"`
	BlobStoreConfig     *BlobStoreConfig     `json:"blobStoreConfig,omitempty"`
	InferenceParameters *InferenceParameters `json:"inferenceParameters,omitempty"`
	// number of rows for which rollouts are generated at a time
	ChunkSize                int         `json:"chunkSize,omitempty"`
	OutputMetrics            string      `json:"outputMetrics,omitempty"`
	MCPServer                string      `json:"mcpServer,omitempty"`
	MaxInferenceReplicaCount int         `json:"maxInferenceReplicaCount,omitempty"`
	NodeCount                int         `json:"nodeCount,omitempty"`
	LossConfig               *LossConfig `json:"lossConfig,omitempty"`
	MaxConcurrentRollouts    int         `json:"maxConcurrentRollouts,omitempty"`
	MaxConcurrentEvaluations int         `json:"maxConcurrentEvaluations,omitempty"`
	Purpose                  string      `json:"purpose,omitempty"`
	// number of chunks by which the model that generates rollouts may be older than the model that is
	// trained on them
	MaxStaleness int `json:"maxStaleness,omitempty"`
}

// ReinforcementJob is the state of one reinforcement fine-tuning job.
type ReinforcementJob struct {
	ReinforcementSpec `json:"spec"`
	JobLife           `json:"life"`
}

// Spec implements Job.
func (j ReinforcementJob) Spec() JobSpec {
	spec := JobSpec{
		DisplayName: j.DisplayName, Method: MethodReinforcement, Nodes: j.NodeCount, Pilot: j.Purpose == PurposePilot,
		Shapes: promptShapes, MinRows: 1, Dataset: j.Dataset, EvaluationDataset: j.EvaluationDataset,
		AutoCarveout: j.EvalAutoCarveout, Config: j.TrainingConfig, ConfigField: "trainingConfig.", Loss: j.LossConfig,
		Evaluator: j.Evaluator, Rollouts: &RolloutSpec{InferenceParameters: j.InferenceParameters, ChunkSize: j.ChunkSize,
			MaxReplicas: j.MaxInferenceReplicaCount, MaxConcurrent: j.MaxConcurrentRollouts,
			MaxConcurrentEvaluations: j.MaxConcurrentEvaluations, MaxStaleness: j.MaxStaleness},
		Tracker: j.TrackerConfig, Secrets: secretsOf(j.ObjectStoreConfig, j.BlobStoreConfig),
	}
	j.Options.apply(&spec)
	return spec
}

var promptShapes = []string{ShapePrompt}

// References implements Referrer.
func (j ReinforcementJob) References(Name) []string { return j.activeReferences(j.Spec().references()) }

type ReinforcementJobCreated struct {
	ReinforcementSpec
	CreatedBy string      `json:"createdBy"`
	Deadline  *time.Time  `json:"deadline,omitempty"`
	Options   *JobOptions `json:"options,omitempty"`
}

func (e ReinforcementJobCreated) Evolve(j *ReinforcementJob) {
	*j = ReinforcementJob{e.ReinforcementSpec, newJobLife(e.CreatedBy, e.Deadline).withOptions(e.Options)}
}

// CreateReinforcementJob creates a job. ID is the last part of the job's name.
type CreateReinforcementJob struct {
	ReinforcementSpec
	ID        string
	CreatedBy string
	Deadline  *time.Time
	Options   *JobOptions
}

func (c CreateReinforcementJob) Decide(j ReinforcementJob, now time.Time) (Event[ReinforcementJob], error) {
	if j.Exists() {
		return nil, alreadyExists("a reinforcement fine-tuning job")
	}
	v := c.check()
	c.Options.check(&v, c.TrainingConfig)
	inFuture(&v, "deadline", c.Deadline, now)
	if err := v.Err(); err != nil {
		return nil, err
	}
	spec := c.ReinforcementSpec
	spec.TrainingConfig, spec.LossConfig = spec.TrainingConfig.withDefaults(c.ID),
		spec.LossConfig.withDefaults(reinforcementLosses)
	spec.InferenceParameters = spec.InferenceParameters.withDefaults()
	if spec.ChunkSize == 0 {
		spec.ChunkSize = DefaultChunkSize
	}
	spec.NodeCount = max(spec.NodeCount, 1)
	return ReinforcementJobCreated{spec, c.CreatedBy, c.Deadline, c.Options}, nil
}

var metricName = regexp.MustCompile(`^[A-Za-z0-9_]+(/[A-Za-z0-9_.-]+)*/?$`)

// SelectedMetrics returns the metrics that outputMetrics selects: names of metrics, and groups of
// metrics, which end in a slash. The default is the groups of rewards and rollouts.
func (s ReinforcementSpec) SelectedMetrics() (names []string) {
	for name := range strings.SplitSeq(s.OutputMetrics, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return []string{"reward/", "rollout/"}
	}
	return names
}

func (s ReinforcementSpec) check() Violations {
	var v Violations
	checkText(&v, s.DisplayName, "")
	v.Require(s.Dataset != "", "dataset", "is required")
	checkData(&v, s.Dataset, s.EvaluationDataset, s.EvalAutoCarveout)
	v.Require(s.Evaluator != "", "evaluator", "is required")
	reference(&v, "evaluator", s.Evaluator, "evaluators")
	s.TrainingConfig.check(&v, "trainingConfig.")
	s.TrackerConfig.check(&v)
	s.BlobStoreConfig.check(&v)
	s.InferenceParameters.check(&v)
	s.LossConfig.check(&v, reinforcementLosses)
	v.Require(s.ChunkSize >= 0 && s.ChunkSize <= MaxChunkSize, "chunkSize", "must be from 1 to %d; 0 is the default, %d",
		MaxChunkSize, DefaultChunkSize)
	v.Require(len(s.OutputMetrics) <= 4096, "outputMetrics", "must have at most 4096 bytes")
	for _, name := range s.SelectedMetrics() {
		v.Require(metricName.MatchString(name), "outputMetrics",
			"must be names of metrics, such as reward/mean, or of groups of metrics, such as train/, with commas between "+
				"them: %.64q is neither", name)
	}
	v.Require(len(s.MCPServer) <= 2048, "mcpServer", "must have at most 2048 bytes")
	v.Require(s.MaxInferenceReplicaCount >= 0 && s.MaxInferenceReplicaCount <= 1000, "maxInferenceReplicaCount",
		"must be from 0 to 1000; 0 stands for the default")
	v.Require(s.NodeCount >= 0 && s.NodeCount <= MaxJobNodes, "nodeCount",
		"must be from 0 to %d; 0 stands for the default, 1",
		MaxJobNodes)
	v.Require(s.MaxConcurrentRollouts >= 0 && s.MaxConcurrentRollouts <= MaxConcurrent, "maxConcurrentRollouts",
		"must be from 0 to %d; 0 stands for the default", MaxConcurrent)
	v.Require(s.MaxConcurrentEvaluations >= 0 && s.MaxConcurrentEvaluations <= MaxConcurrent, "maxConcurrentEvaluations",
		"must be from 0 to %d; 0 stands for the default", MaxConcurrent)
	v.Require(s.MaxStaleness >= 0 && s.MaxStaleness <= MaxStaleness, "maxStaleness",
		"must be from 0 to %d; 0, the default, generates each chunk with the newest weights", MaxStaleness)
	oneOf(&v, "purpose", s.Purpose, "PURPOSE_UNSPECIFIED", PurposePilot)
	return v
}
