package domain

import (
	"iter"
	"time"
)

// A Job is the state of a job of any kind: a *SupervisedJob, a *DPOJob, … Schedulers, workers,
// quotas and the reconciler work on jobs alone, and know no kind of them.
type Job interface {
	State
	User
	// Life returns the part of the state that all kinds share.
	Life() *JobLife
	// Spec returns what the job runs.
	Spec() JobSpec
}

// A JobSpec is what a job runs, in one form for all kinds: what differs from one kind to another is
// data here.
type JobSpec struct {
	DisplayName string
	Method      string // of training: MethodSupervised, …
	Nodes       int    // of one attempt; 0 is 1

	Shapes            []string // of the rows that it can train on and be evaluated on
	MinRows           Count    // of Dataset
	Dataset           string   // "" when it waits for steps that name one
	EvaluationDataset string
	AutoCarveout      bool // rows of Dataset are held back for evaluation

	Config      TrainingConfig
	ConfigField string // where the kind has Config, as a prefix of its fields: "" or "trainingConfig."
	EarlyStop   bool
	Loss        *LossConfig

	Evaluator     string       // that scores the job's own completions; "" is none
	Rollouts      *RolloutSpec // how it generates them; nil when it generates none
	RewardWeights []string     // of scores that the rows bring

	Waits       bool   // for a further step after each
	HasStep     bool   // a step is yet to be run; of jobs that wait
	StepDataset string // of the newest step; "" before the first
	From        Name   // model of the step before, in place of the base of Config; "" is none

	Tracker *TrackerConfig
	Secrets []string // that the job reads
}

// A RolloutSpec is how a job generates completions to train on. 0 is the engine's default.
type RolloutSpec struct {
	InferenceParameters      *InferenceParameters
	ChunkSize                int // rows
	MaxConcurrent            int
	MaxConcurrentEvaluations int
}

// Methods of training. An engine advertises those that it can run.
const (
	MethodSupervised    = "supervised"
	MethodDPO           = "dpo"           // from pairs of completions, by DPO or ORPO
	MethodReinforcement = "reinforcement" // from the model's own completions, scored by an evaluator
	MethodRLOR          = "rlor"          // from samples that were scored elsewhere
)

// MinExamples is the number of rows that a job needs to train on examples.
const MinExamples = 3

// Need returns what one attempt of the job needs of the fleet.
func (s JobSpec) Need() Need {
	engine := "train"
	if s.Method != MethodSupervised {
		engine += ":" + s.Method
	}
	return Need{Count: max(1, s.Nodes), Pool: PoolTraining, Engine: engine, Takes: Resources{CPUMilli: 1000, MemoryMiB: 512}}
}

// Awaits reports whether the job has nothing to run until it is given its next step.
func (s JobSpec) Awaits() bool { return s.Waits && !s.HasStep }

// uses returns the names of what the job reads.
func (s JobSpec) uses() []string {
	warmStart := string(s.From)
	if warmStart == "" {
		warmStart = s.Config.WarmStartFrom
	}
	return append(s.Secrets, s.Dataset, s.EvaluationDataset, s.StepDataset, s.Evaluator, s.Config.BaseModel, warmStart)
}

// newJobKind returns a kind of job: its own events, and those of JobLives. The prefix stands before
// the stored names of the latter.
func newJobKind[S any](collection, prefix string, events map[string]Event[S], life func(*S) *JobLife) *Kind[S] {
	k := Extend(NewKind(collection, events), prefix+".", JobLives, life)
	k.life = life
	return k
}

// IntendJob addresses a command on JobLife to a job of any kind.
func IntendJob(name Name, cmd Command[JobLife]) Intent {
	if kind := KindOf(name.Collection()); kind != nil {
		return kind.IntendJob(name, cmd)
	}
	return noJob(name, cmd)
}

// IntendFinish completes a job whose results are stored, or the step of one that waits for more.
func IntendFinish(name Name, waits bool, attempt int) Intent {
	if waits {
		return Intend(TrainerJobs, name, Command[TrainerJob](FinishTrainStep{Attempt: attempt}))
	}
	return IntendJob(name, CompleteJob{Attempt: attempt})
}

// IntendJob implements AnyKind.
func (k *Kind[S]) IntendJob(name Name, cmd Command[JobLife]) Intent {
	if k.life == nil {
		return noJob(name, cmd)
	}
	return intend(k, name, Command[S](liftedCommand[S, JobLife]{cmd, k.life}), cmd)
}

func noJob(name Name, cmd Command[JobLife]) Intent {
	return Intent{name, cmd, func(any, time.Time) (Record, error) {
		return Record{}, Errorf(Internal, "%s is not a job", name)
	}}
}

// JobKinds yields the kinds of jobs.
func JobKinds() iter.Seq[AnyKind] {
	return func(yield func(AnyKind) bool) {
		for _, k := range Kinds {
			if IsJob(k) && !yield(k) {
				return
			}
		}
	}
}

// IsJob reports whether a kind is one of jobs.
func IsJob(k AnyKind) bool {
	_, ok := k.NewRow("").Pointer().(Job)
	return ok
}

// JobShapes returns the shapes of rows that jobs of a collection train on; nil when it has no jobs.
func JobShapes(collection string) []string {
	if k := KindOf(collection); k != nil {
		if job, ok := k.NewRow("").Pointer().(Job); ok {
			return job.Spec().Shapes
		}
	}
	return nil
}
