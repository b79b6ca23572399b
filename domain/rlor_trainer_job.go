package domain

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A reinforcement trainer job trains on completions that were scored elsewhere. A job with
// keepAlive or serviceMode waits IDLE for its next step, without nodes. JobLives describes its
// states and most of its events.
//
//	(none) --CreateTrainerJob--> CREATING … as in JobLives; for a job that waits for steps, also:
//	VALIDATING, PENDING       --AwaitStep-->        IDLE, when the job has no step to run
//	RUNNING, WRITING_RESULTS  --FinishTrainStep-->  IDLE
//	IDLE                      --ExecuteTrainStep--> PENDING, with the next step
//	CREATING, VALIDATING      --StartService-->     unchanged; the next attempt is a service
//	IDLE                      --StartService-->     PENDING
//	PENDING, RUNNING          --StopService-->      IDLE, if the attempt is a service
var TrainerJobs = newJobKind("rlorTrainerJobs", "rlorTrainerJob", map[string]Event[TrainerJob]{
	"rlorTrainerJob.created.v1":        TrainerJobCreated{},
	"rlorTrainerJob.stepGiven.v1":      TrainerStepGiven{},
	"rlorTrainerJob.stepFinished.v1":   TrainerStepFinished{},
	"rlorTrainerJob.awaiting.v1":       TrainerAwaiting{},
	"rlorTrainerJob.serviceStarted.v1": TrainerServiceStarted{},
	"rlorTrainerJob.serviceStopped.v1": TrainerServiceStopped{},
}, func(j *TrainerJob) *JobLife { return &j.JobLife })

// MaxRewards is the maximum number of rewards of one trainer job.
const MaxRewards = 64

// TrainerSpec holds the fields of a reinforcement trainer job that the caller sets.
// RolloutDeploymentName is a resource name, and HotLoadDeploymentID only an ID: see HotLoadTargets.
type TrainerSpec struct {
	DisplayName       string         `json:"displayName"`
	Dataset           string         `json:"dataset,omitempty"`
	EvaluationDataset string         `json:"evaluationDataset,omitempty"`
	EvalAutoCarveout  bool           `json:"evalAutoCarveout,omitempty"`
	TrainingConfig    TrainingConfig `json:"trainingConfig"`
	// weights of the rewards, each as "name=weight"
	RewardWeights     []string           `json:"rewardWeights,omitempty"`
	TrackerConfig     *TrackerConfig     `json:"trackerConfig,omitempty"`
	ObjectStoreConfig *ObjectStoreConfig `json:"objectStoreConfig,omitempty"`
	KeepAlive         bool               `json:"keepAlive,omitempty"`
	// name of a deployment that loads the trained weights
	RolloutDeploymentName string      `json:"rolloutDeploymentName,omitempty"`
	LossConfig            *LossConfig `json:"lossConfig,omitempty"`
	NodeCount             int         `json:"nodeCount,omitempty"`
	ServiceMode           bool        `json:"serviceMode,omitempty"`
	// ID of a deployment that loads the trained weights
	HotLoadDeploymentID string `json:"hotLoadDeploymentId,omitempty"`
}

// TrainerJob is the state of one reinforcement trainer job.
type TrainerJob struct {
	TrainerSpec `json:"spec"`
	JobLife     `json:"life"`
	Step        TrainStep `json:"step"`     // newest train step; Number is 0 before the first one
	Finished    int       `json:"finished"` // number of the newest finished train step; 0 before the first

	// the job's attempts execute the operations of training runs, instead of a train step
	Serving bool `json:"serving,omitempty"`
}

// Spec implements Job.
func (j TrainerJob) Spec() JobSpec {
	spec := JobSpec{
		DisplayName: j.DisplayName, Method: MethodRLOR, Nodes: j.NodeCount,
		Shapes: sampleShapes, MinRows: 1, Dataset: j.Dataset, EvaluationDataset: j.EvaluationDataset,
		AutoCarveout: j.EvalAutoCarveout, Config: j.TrainingConfig, ConfigField: "trainingConfig.", Loss: j.LossConfig,
		RewardWeights: j.RewardWeights, Waits: j.Waits(), HasStep: j.HasStep(), StepDataset: j.Step.Dataset, From: j.From(),
		Service: j.Serving,
		Tracker: j.TrackerConfig, Secrets: secretsOf(j.ObjectStoreConfig, nil),
	}
	switch {
	case j.Serving:
		spec.Method, spec.Nodes = MethodService, 1
		spec.Dataset, spec.EvaluationDataset, spec.StepDataset, spec.AutoCarveout = "", "", "", false
		spec.Config.OutputModel, spec.From = "", "" // runs train the base model, and their clients save checkpoints
	case j.Step.Number > 0:
		spec.Config.OutputModel = j.Step.OutputModel
	}
	return spec
}

var sampleShapes = []string{ShapeSamples}

// References implements Referrer. A job that has not ended refers to the resources that it reads,
// and to the deployments that serve its weights.
func (j TrainerJob) References(self Name) []string {
	names := j.Spec().references()
	for _, target := range j.HotLoadTargets(self.Account()) {
		names = append(names, string(target))
	}
	return j.activeReferences(names)
}

type TrainerJobCreated struct {
	TrainerSpec
	CreatedBy string     `json:"createdBy"`
	Deadline  *time.Time `json:"deadline,omitempty"`
}

func (e TrainerJobCreated) Evolve(j *TrainerJob) {
	*j = TrainerJob{TrainerSpec: e.TrainerSpec, JobLife: newJobLife(e.CreatedBy, e.Deadline)}
	if e.Dataset != "" {
		j.Step = TrainStep{1, e.Dataset, e.TrainingConfig.OutputModel}
	}
}

// CreateTrainerJob creates a job. ID is the last part of the job's name.
type CreateTrainerJob struct {
	TrainerSpec
	ID        string
	CreatedBy string
	Deadline  *time.Time
}

func (c CreateTrainerJob) Decide(j TrainerJob, now time.Time) (Event[TrainerJob], error) {
	if j.Exists() {
		return nil, alreadyExists("a reinforcement trainer job")
	}
	v := c.check()
	inFuture(&v, "deadline", c.Deadline, now)
	if err := v.Err(); err != nil {
		return nil, err
	}
	spec := c.TrainerSpec
	spec.TrainingConfig, spec.LossConfig = spec.TrainingConfig.withDefaults(c.ID),
		spec.LossConfig.withDefaults(reinforcementLosses)
	spec.NodeCount = max(spec.NodeCount, 1)
	return TrainerJobCreated{spec, c.CreatedBy, c.Deadline}, nil
}

func (s TrainerSpec) check() Violations {
	var v Violations
	waits := s.Waits()
	checkText(&v, s.DisplayName, "")
	v.Require(s.Dataset != "" || waits, "dataset",
		"is required, unless keepAlive or serviceMode is set and each step names its dataset")
	checkData(&v, s.Dataset, s.EvaluationDataset, s.EvalAutoCarveout)
	v.Require(s.Dataset != "" || !s.EvalAutoCarveout, "evalAutoCarveout",
		"holds out rows of dataset: set dataset, or leave evalAutoCarveout out")
	s.TrainingConfig.check(&v, "trainingConfig.")
	s.TrackerConfig.check(&v)
	s.LossConfig.check(&v, reinforcementLosses)
	reference(&v, "rolloutDeploymentName", s.RolloutDeploymentName, "deployments")
	v.Require(s.HotLoadDeploymentID == "" || waits, "hotLoadDeploymentId",
		"requires serviceMode or keepAlive: set serviceMode or keepAlive, or leave this field out")
	v.Require(s.HotLoadDeploymentID == "" || ValidID(s.HotLoadDeploymentID), "hotLoadDeploymentId", IDRule)
	v.Require(s.NodeCount >= 0 && s.NodeCount <= MaxJobNodes, "nodeCount",
		"must be from 0 to %d; 0 stands for the default, 1",
		MaxJobNodes)
	v.Require(len(s.RewardWeights) <= MaxRewards, "rewardWeights", "must have at most %d entries", MaxRewards)
	seen := map[string]bool{}
	for i, entry := range s.RewardWeights {
		reward, _, ok := RewardWeight(entry)
		v.Require(ok, "rewardWeights["+strconv.Itoa(i)+"]",
			`must be the name of a reward, "=" and a number, such as "accuracy=0.8"`)
		v.Require(!ok || !seen[reward], "rewardWeights["+strconv.Itoa(i)+"]",
			"names the reward %q a second time: name each reward once", reward)
		seen[reward] = true
	}
	return v
}

var rewardName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_./-]{0,127}$`)

// RewardsOf parses the entries of rewardWeights and returns the weights by the name of the reward.
// It ignores invalid entries.
func RewardsOf(entries []string) map[string]float64 {
	rewards := map[string]float64{}
	for _, entry := range entries {
		if reward, weight, ok := RewardWeight(entry); ok {
			rewards[reward] = weight
		}
	}
	return rewards
}

// RewardWeight parses one entry of rewardWeights, such as "accuracy=0.8"; ok is false when the
// entry is invalid.
func RewardWeight(entry string) (reward string, weight float64, ok bool) {
	reward, number, found := strings.Cut(entry, "=")
	weight, err := strconv.ParseFloat(number, 64)
	ok = found && err == nil && rewardName.MatchString(reward) && !math.IsNaN(weight) && !math.IsInf(weight, 0)
	return reward, weight, ok
}
