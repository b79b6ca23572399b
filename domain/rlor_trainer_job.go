package domain

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A reinforcement trainer job learns from answers that were scored elsewhere.
// One that is kept alive, or serves, waits IDLE for its next step, and holds no
// node meanwhile. Its states and most of its events are those of every job: see
// JobLives.
//
//	(none) --CreateTrainerJob--> CREATING … as in JobLives, and of one that waits for steps:
//	VALIDATING, PENDING       --AwaitStep-->        IDLE, when it has nothing to learn from
//	RUNNING, WRITING_RESULTS  --FinishTrainStep-->  IDLE
//	IDLE                      --ExecuteTrainStep--> PENDING, with the next step
var TrainerJobs = newJobKind("rlorTrainerJobs", "rlorTrainerJob", map[string]Event[TrainerJob]{
	"rlorTrainerJob.created.v1":      TrainerJobCreated{},
	"rlorTrainerJob.stepGiven.v1":    TrainerStepGiven{},
	"rlorTrainerJob.stepFinished.v1": TrainerStepFinished{},
	"rlorTrainerJob.awaiting.v1":     TrainerAwaiting{},
}, func(j *TrainerJob) *JobLife { return &j.JobLife })

// MaxRewards is how many rewards one trainer job may weigh.
const MaxRewards = 64

// TrainerSpec is what the caller sets.
type TrainerSpec struct {
	DisplayName           string             `json:"displayName"`
	Dataset               string             `json:"dataset,omitempty"`
	EvaluationDataset     string             `json:"evaluationDataset,omitempty"`
	EvalAutoCarveout      bool               `json:"evalAutoCarveout,omitempty"`
	TrainingConfig        TrainingConfig     `json:"trainingConfig"`
	RewardWeights         []string           `json:"rewardWeights,omitempty"` // "name=weight"
	TrackerConfig         *TrackerConfig     `json:"trackerConfig,omitempty"`
	ObjectStoreConfig     *ObjectStoreConfig `json:"objectStoreConfig,omitempty"`
	KeepAlive             bool               `json:"keepAlive,omitempty"`
	RolloutDeploymentName string             `json:"rolloutDeploymentName,omitempty"` // gets the weights; "" is none
	LossConfig            *LossConfig        `json:"lossConfig,omitempty"`
	NodeCount             int                `json:"nodeCount,omitempty"`
	ServiceMode           bool               `json:"serviceMode,omitempty"`
	HotLoadDeploymentID   string             `json:"hotLoadDeploymentId,omitempty"` // gets the checkpoints
}

// TrainerJob is the state of one reinforcement trainer job.
type TrainerJob struct {
	TrainerSpec `json:"spec"`
	JobLife     `json:"life"`
	Step        TrainStep `json:"step"`     // the newest that was given; number 0 before the first
	Finished    int       `json:"finished"` // the number of the newest that was done
}

// Spec implements Job.
func (j TrainerJob) Spec() JobSpec {
	spec := JobSpec{
		DisplayName: j.DisplayName, Method: MethodRLOR, Nodes: j.NodeCount,
		Shapes: sampleShapes, MinRows: 1, Dataset: j.Dataset, EvaluationDataset: j.EvaluationDataset,
		AutoCarveout: j.EvalAutoCarveout, Config: j.TrainingConfig, ConfigField: "trainingConfig.", Loss: j.LossConfig,
		RewardWeights: j.RewardWeights, Waits: j.Waits(), HasStep: j.HasStep(), StepDataset: j.Step.Dataset, From: j.From(),
		Tracker: j.TrackerConfig, Secrets: secretsOf(j.ObjectStoreConfig, nil),
	}
	if j.Step.Number > 0 {
		spec.Config.OutputModel = j.Step.OutputModel
	}
	return spec
}

var sampleShapes = []string{ShapeSamples}

// Uses implements User: what the job reads, and the deployments that get its weights.
func (j TrainerJob) Uses(self Name) []string {
	names := j.Spec().uses()
	for _, target := range j.HotLoadTargets(self.Account()) {
		names = append(names, string(target))
	}
	return j.working(names)
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

// CreateTrainerJob makes a job. ID is the last part of its name.
type CreateTrainerJob struct {
	TrainerSpec
	ID        string
	CreatedBy string
	Deadline  *time.Time
}

func (c CreateTrainerJob) Decide(j TrainerJob, now time.Time) (Event[TrainerJob], error) {
	if j.Exists() {
		return nil, exists("a reinforcement trainer job")
	}
	v := c.check()
	inFuture(&v, "deadline", c.Deadline, now)
	if err := v.Err(); err != nil {
		return nil, err
	}
	spec := c.TrainerSpec
	spec.TrainingConfig, spec.LossConfig = spec.TrainingConfig.filled(c.ID), spec.LossConfig.filled(reinforcementLosses)
	spec.NodeCount = max(spec.NodeCount, 1)
	return TrainerJobCreated{spec, c.CreatedBy, c.Deadline}, nil
}

func (s TrainerSpec) check() Violations {
	var v Violations
	waits := s.Waits()
	checkText(&v, s.DisplayName, "")
	v.Require(s.Dataset != "" || waits, "dataset", "is required, unless keepAlive or serviceMode is set and steps bring their own")
	checkData(&v, s.Dataset, s.EvaluationDataset, s.EvalAutoCarveout)
	v.Require(s.Dataset != "" || !s.EvalAutoCarveout, "evalAutoCarveout", "holds back rows of dataset: name one, or leave it out")
	s.TrainingConfig.check(&v, "trainingConfig.")
	s.TrackerConfig.check(&v)
	s.LossConfig.check(&v, reinforcementLosses)
	reference(&v, "rolloutDeploymentName", s.RolloutDeploymentName, "deployments")
	v.Require(s.HotLoadDeploymentID == "" || waits, "hotLoadDeploymentId", "is valid only with serviceMode or keepAlive: set one of them, or leave it out")
	v.Require(s.HotLoadDeploymentID == "" || ValidID(s.HotLoadDeploymentID), "hotLoadDeploymentId", IDRule)
	v.Require(s.NodeCount >= 0 && s.NodeCount <= MaxJobNodes, "nodeCount", "must be from 0 (the default, 1) to %d", MaxJobNodes)
	v.Require(len(s.RewardWeights) <= MaxRewards, "rewardWeights", "must have at most %d entries", MaxRewards)
	seen := map[string]bool{}
	for i, entry := range s.RewardWeights {
		reward, _, ok := RewardWeight(entry)
		v.Require(ok, "rewardWeights["+strconv.Itoa(i)+"]", `must be a reward's name, an equals sign and a number, such as "accuracy=0.8"`)
		v.Require(!ok || !seen[reward], "rewardWeights["+strconv.Itoa(i)+"]", "weighs a reward that is weighed already: give each once")
		seen[reward] = true
	}
	return v
}

var rewardName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_./-]{0,127}$`)

// RewardsOf returns the weights of entries of rewardWeights by the names of the rewards.
func RewardsOf(entries []string) map[string]float64 {
	rewards := map[string]float64{}
	for _, entry := range entries {
		if reward, weight, ok := RewardWeight(entry); ok {
			rewards[reward] = weight
		}
	}
	return rewards
}

// RewardWeight reads one entry of rewardWeights.
func RewardWeight(entry string) (reward string, weight float64, ok bool) {
	reward, number, found := strings.Cut(entry, "=")
	weight, err := strconv.ParseFloat(number, 64)
	ok = found && err == nil && rewardName.MatchString(reward) && !math.IsNaN(weight) && !math.IsInf(weight, 0)
	return reward, weight, ok
}
