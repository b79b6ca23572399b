package domain

import "time"

// A reinforcement fine-tuning job lets a model answer prompts, has an
// evaluator score the answers, and teaches the model to score better. Its
// states and most of its events are those of every job: see JobLives.
//
//	(none) --CreateReinforcementJob--> CREATING … as in JobLives
var ReinforcementJobs = newJobKind("reinforcementFineTuningJobs", "reinforcementFineTuningJob", map[string]Event[ReinforcementJob]{
	"reinforcementFineTuningJob.created.v1": ReinforcementJobCreated{},
}, func(j *ReinforcementJob) *JobLife { return &j.JobLife })

// Defaults and limits of reinforcement jobs. A dataset of more than
// ChunkedAbove rows is worked through in chunks.
const (
	DefaultChunkSize = 200
	MaxChunkSize     = 10_000
	ChunkedAbove     = 300
	MaxConcurrent    = 10_000 // rollouts, evaluations
)

// ReinforcementSpec is what the caller sets.
type ReinforcementSpec struct {
	DisplayName              string               `json:"displayName"`
	Dataset                  string               `json:"dataset"`
	Evaluator                string               `json:"evaluator"`
	EvaluationDataset        string               `json:"evaluationDataset,omitempty"`
	EvalAutoCarveout         bool                 `json:"evalAutoCarveout,omitempty"`
	TrainingConfig           TrainingConfig       `json:"trainingConfig"`
	TrackerConfig            *TrackerConfig       `json:"trackerConfig,omitempty"`
	ObjectStoreConfig        *ObjectStoreConfig   `json:"objectStoreConfig,omitempty"`
	BlobStoreConfig          *BlobStoreConfig     `json:"blobStoreConfig,omitempty"`
	InferenceParameters      *InferenceParameters `json:"inferenceParameters,omitempty"`
	ChunkSize                int                  `json:"chunkSize,omitempty"` // rows
	OutputMetrics            string               `json:"outputMetrics,omitempty"`
	MCPServer                string               `json:"mcpServer,omitempty"`
	MaxInferenceReplicaCount int                  `json:"maxInferenceReplicaCount,omitempty"`
	NodeCount                int                  `json:"nodeCount,omitempty"`
	LossConfig               *LossConfig          `json:"lossConfig,omitempty"`
	MaxConcurrentRollouts    int                  `json:"maxConcurrentRollouts,omitempty"`
	MaxConcurrentEvaluations int                  `json:"maxConcurrentEvaluations,omitempty"`
	Purpose                  string               `json:"purpose,omitempty"`
}

// ReinforcementJob is the state of one reinforcement fine-tuning job.
type ReinforcementJob struct {
	ReinforcementSpec `json:"spec"`
	JobLife           `json:"life"`
}

// Spec implements Job.
func (j ReinforcementJob) Spec() JobSpec {
	return JobSpec{
		DisplayName: j.DisplayName, Method: MethodReinforcement, Nodes: j.NodeCount,
		Shapes: promptShapes, MinRows: 1, Dataset: j.Dataset, EvaluationDataset: j.EvaluationDataset,
		AutoCarveout: j.EvalAutoCarveout, Config: j.TrainingConfig, ConfigField: "trainingConfig.", Loss: j.LossConfig,
		Evaluator: j.Evaluator, Rollouts: &RolloutSpec{InferenceParameters: j.InferenceParameters, ChunkSize: j.ChunkSize,
			MaxConcurrent: j.MaxConcurrentRollouts, MaxConcurrentEvaluations: j.MaxConcurrentEvaluations},
		Tracker: j.TrackerConfig, Secrets: secretsOf(j.ObjectStoreConfig, j.BlobStoreConfig),
	}
}

var promptShapes = []string{ShapePrompt}

// Uses implements User.
func (j ReinforcementJob) Uses(Name) []string { return j.working(j.Spec().uses()) }

type ReinforcementJobCreated struct {
	ReinforcementSpec
	CreatedBy string     `json:"createdBy"`
	Deadline  *time.Time `json:"deadline,omitempty"`
}

func (e ReinforcementJobCreated) Evolve(j *ReinforcementJob) {
	*j = ReinforcementJob{e.ReinforcementSpec, newJobLife(e.CreatedBy, e.Deadline)}
}

// CreateReinforcementJob makes a job. ID is the last part of its name.
type CreateReinforcementJob struct {
	ReinforcementSpec
	ID        string
	CreatedBy string
	Deadline  *time.Time
}

func (c CreateReinforcementJob) Decide(j ReinforcementJob, now time.Time) (Event[ReinforcementJob], error) {
	if j.Exists() {
		return nil, exists("a reinforcement fine-tuning job")
	}
	v := c.check()
	inFuture(&v, "deadline", c.Deadline, now)
	if err := v.Err(); err != nil {
		return nil, err
	}
	spec := c.ReinforcementSpec
	spec.TrainingConfig, spec.LossConfig = spec.TrainingConfig.filled(c.ID), spec.LossConfig.filled(reinforcementLosses)
	spec.InferenceParameters = spec.InferenceParameters.filled()
	if spec.ChunkSize == 0 {
		spec.ChunkSize = DefaultChunkSize
	}
	spec.NodeCount = max(spec.NodeCount, 1)
	return ReinforcementJobCreated{spec, c.CreatedBy, c.Deadline}, nil
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
	v.Require(s.ChunkSize >= 0 && s.ChunkSize <= MaxChunkSize, "chunkSize", "must be from 1 to %d; 0 is the default, %d", MaxChunkSize, DefaultChunkSize)
	v.Require(len(s.OutputMetrics) <= 4096, "outputMetrics", "must have at most 4096 bytes")
	v.Require(len(s.MCPServer) <= 2048, "mcpServer", "must have at most 2048 bytes")
	v.Require(s.MaxInferenceReplicaCount >= 0 && s.MaxInferenceReplicaCount <= 1000, "maxInferenceReplicaCount", "must be from 0 (the default) to 1000")
	v.Require(s.NodeCount >= 0 && s.NodeCount <= MaxJobNodes, "nodeCount", "must be from 0 (the default, 1) to %d", MaxJobNodes)
	v.Require(s.MaxConcurrentRollouts >= 0 && s.MaxConcurrentRollouts <= MaxConcurrent, "maxConcurrentRollouts", "must be from 0 (the default) to %d", MaxConcurrent)
	v.Require(s.MaxConcurrentEvaluations >= 0 && s.MaxConcurrentEvaluations <= MaxConcurrent, "maxConcurrentEvaluations", "must be from 0 (the default) to %d", MaxConcurrent)
	oneOf(&v, "purpose", s.Purpose, "PURPOSE_UNSPECIFIED", "PURPOSE_PILOT")
	return v
}
