package domain

import (
	"cmp"
	"iter"
	"math"
	"math/bits"
	"slices"
	"sync"
	"time"
)

// A Job is the state of a job of any kind: a *SupervisedJob, a *DPOJob, … Schedulers, workers,
// quotas and the reconciler work with this interface wherever all kinds are handled alike.
type Job interface {
	State
	Referrer
	// Life returns the part of the state that all kinds of jobs share.
	Life() *JobLife
	// Spec returns the settings by which the job is scheduled and run.
	Spec() JobSpec
}

// A JobSpec holds the settings by which a job is scheduled and run. Each kind of job converts its
// own spec into a JobSpec.
type JobSpec struct {
	DisplayName string
	Method      string // method of training: MethodSupervised, …
	Nodes       int    // number of nodes of one attempt; 0 is 1
	Turbo       bool   // an attempt gets twice the cores, and computes the same result sooner
	Pilot       bool   // the job gets capacity only after all other pending jobs

	Shapes            []string // shapes of the rows that the job can train on and be evaluated on
	MinRows           Count    // minimum number of rows of Dataset
	Dataset           string   // name of the training dataset; "" when each train step names one
	EvaluationDataset string
	AutoCarveout      bool // rows of Dataset are held out for evaluation

	Config TrainingConfig
	Seed   *int // random seed of all attempts; nil derives it from the job's name
	// LearningRateMultiplier scales the engine's default learning rate; 0 stands for 1.
	LearningRateMultiplier float64
	ConfigField            string // prefix of the fields of Config in API requests: "" or "trainingConfig."
	EarlyStop              bool
	ReplayWeight           float64
	Loss                   *LossConfig

	Evaluator     string       // evaluator that scores the job's own completions; "" without one
	Rollouts      *RolloutSpec // how the job generates completions; nil when it generates none
	RewardWeights []string     // weights of the scores in the rows, each as "name=weight"

	Waits       bool   // the job waits for another train step after each train step
	HasStep     bool   // the job has a train step that is not finished; false unless Waits
	StepDataset string // dataset of the newest train step; "" before the first step
	Service     bool   // the attempts execute the operations of training runs, instead of a train step
	From        Name   // output of the previous train step, which replaces the base model of Config; "" is none

	Tracker    *TrackerConfig
	MetricsURL *Sealed  // sealed URL to which the metrics file is PUT; nil without a URL, or if it has no secret
	Secrets    []string // names of the secrets that the job reads
}

// A RolloutSpec describes how a job generates completions to train on. A number of 0 stands for the
// engine's default.
type RolloutSpec struct {
	InferenceParameters      *InferenceParameters
	ChunkSize                int // number of rows for which rollouts are generated at a time
	MaxReplicas              int // maximum number of copies of the model that generate completions at a time
	MaxConcurrent            int
	MaxConcurrentEvaluations int
	MaxStaleness             int // number of chunks; see ReinforcementSpec
}

// MaxReplicas returns the maximum number of copies of the model that generate rollouts at a time.
// An attempt gets a CPU core for each copy, as far as cores are free when it starts.
func (s JobSpec) MaxReplicas() int {
	r := s.Rollouts
	switch {
	case r == nil:
		return 1
	case r.MaxConcurrent > 0:
		return max(1, min(r.MaxReplicas, r.MaxConcurrent))
	}
	return max(1, r.MaxReplicas)
}

// Methods of training. An engine advertises the methods that it can run.
const (
	MethodSupervised    = "supervised"
	MethodDPO           = "dpo"           // trains on pairs of completions, by DPO or ORPO
	MethodReinforcement = "reinforcement" // trains on the model's own completions, scored by an evaluator
	MethodRLOR          = "rlor"          // trains on samples that were scored elsewhere
	MethodService       = "service"       // executes the operations of training runs
)

// MinExamples is the minimum number of rows of a dataset of examples or preferences.
const MinExamples = 3

// coreMilli is one core in millicores.
const coreMilli = 1000

// Need returns what one attempt of the job requires of the fleet, without accelerators: see NeedOn.
func (s JobSpec) Need() Need {
	engine := "train"
	if s.Method != MethodSupervised {
		engine += ":" + s.Method
	}
	need := Need{Count: max(1, s.Nodes), Pool: PoolTraining, Engine: engine,
		Resources: Resources{CPUMilli: coreMilli, MemoryMiB: 512}}
	if !unspecified(s.Config.Region) {
		need.Regions = []string{s.Config.Region}
	}
	if s.Turbo {
		need.Resources.CPUMilli *= 2
	}
	return need
}

// NeedOn returns what one attempt of the job requires of the fleet, with accelerators. The user of
// a job chooses neither their type nor their number. If a row of the operator's table applies to
// the job, the row determines both. Otherwise the job gets the type in fleet, which is the result
// of FleetAccelerator for Need, and the smallest power of two of them whose memory is enough for
// the training: see JobSpec.Memory. A job that fits on no node waits, and its status says so.
func (s JobSpec) NeedOn(model ModelSize, fleet string, table JobAccelerators) Need {
	need := s.Need()
	row, found := table.rowFor(s.Method, model.ParameterCount)
	if found && row.AcceleratorType != "" {
		fleet = row.AcceleratorType
	}
	if unspecified(fleet) {
		return need
	}
	count := row.AcceleratorCount
	if !found {
		count = s.estimatedAccelerators(model, fleet)
	}
	if count > 0 {
		need.Resources.Accelerators = map[string]int{fleet: count}
	}
	return need
}

// estimatedAccelerators returns the smallest power of two of accelerators whose memory is enough
// for the training; 1 for a type of unknown memory.
func (s JobSpec) estimatedAccelerators(model ModelSize, accelerator string) int {
	count := 1
	if memory, known := deviceMemory[accelerator]; known {
		count = max(1, int(math.Ceil(s.Memory(model)/(memory*1e9))))
	}
	return 1 << bits.Len(uint(count-1))
}

// WithReplicas returns the need n, a result of NeedOn, for this number of copies of the model that
// generate rollouts. Each copy after the first one adds a CPU core.
func (n Need) WithReplicas(replicas int) Need {
	n.Resources.CPUMilli += coreMilli * int64(replicas-1)
	return n
}

// Model returns the model that the job trains: that of the previous train step, else the adapter to
// continue from, else the base model.
func (s JobSpec) Model() Name {
	return Name(cmp.Or(string(s.From), s.Config.WarmStartFrom, s.Config.BaseModel))
}

// AwaitsStep reports whether the job cannot run until its user submits another train step, or a
// client uses its training service.
func (s JobSpec) AwaitsStep() bool { return s.Waits && !s.HasStep && !s.Service }

// ReservedOutput returns the model whose name a job reserves: its outputModel, from the creation of
// the job until the job has ended, or for a job with train steps, during each step. It returns ""
// when the job reserves no name. FAILED and CANCELLED jobs release the name, and reserve it again
// when they are resumed.
func ReservedOutput(self Name, j Job) Name {
	life := j.Life()
	if !life.Exists() || life.Terminal() || life.Deleting() {
		return ""
	}
	spec := j.Spec()
	if spec.AwaitsStep() || spec.Config.OutputModel == "" {
		return ""
	}
	return NewName(self.Account(), Models.Collection, spec.Config.OutputModel)
}

// references returns the names of the resources that the job uses.
func (s JobSpec) references() []string {
	warmStart := string(s.From)
	if warmStart == "" {
		warmStart = s.Config.WarmStartFrom
	}
	return append(s.Secrets, s.Dataset, s.EvaluationDataset, s.StepDataset, s.Evaluator, s.Config.BaseModel, warmStart)
}

// newJobKind returns a kind of job with the given events and those of JobLives, whose stored names
// get the prefix. life returns the JobLife in a state.
func newJobKind[S any](collection, prefix string, events map[string]Event[S], life func(*S) *JobLife) *Kind[S] {
	k := Extend(NewKind(collection, events), prefix+".", JobLives, life)
	k.life = life
	return k
}

// IntendJob returns the intent that addresses a command on JobLife to the named job, of any kind.
func IntendJob(name Name, cmd Command[JobLife]) Intent {
	if kind := KindOf(name.Collection()); kind != nil {
		return kind.IntendJob(name, cmd)
	}
	return noJob(name, cmd)
}

// IntendFinish returns the intent that completes a job whose results are stored. If waits is true,
// the job waits for further train steps, and the intent finishes only its current train step.
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
	return Intent{Name: name, Command: cmd, decide: func(any, time.Time) (Record, error) {
		return Record{}, Errorf(Internal, "%s is not a job", name)
	}}
}

// JobKinds yields the kinds of jobs.
func JobKinds() iter.Seq[AnyKind] { return slices.Values(jobKinds()) }

var jobKinds = sync.OnceValue(func() []AnyKind {
	return slices.DeleteFunc(slices.Clone(Kinds), func(k AnyKind) bool { return !IsJob(k) })
})

// IsJob reports whether resources of the kind are jobs.
func IsJob(k AnyKind) bool {
	_, ok := k.NewRow("").Pointer().(Job)
	return ok
}

// JobShapes returns the shapes of rows that jobs of a collection train on; nil for a collection of
// other resources.
func JobShapes(collection string) []string {
	if k := KindOf(collection); k != nil {
		if job, ok := k.NewRow("").Pointer().(Job); ok {
			return job.Spec().Shapes
		}
	}
	return nil
}
