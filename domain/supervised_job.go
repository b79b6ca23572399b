package domain

import "time"

// A supervised fine-tuning job trains a model on examples. JobLives describes its states and most
// of its events.
//
//	(none) --CreateSupervisedJob--> CREATING … as in JobLives
var SupervisedJobs = newJobKind("supervisedFineTuningJobs", "supervisedFineTuningJob", map[string]Event[SupervisedJob]{
	"supervisedFineTuningJob.created.v1": SupervisedJobCreated{},
}, func(j *SupervisedJob) *JobLife { return &j.JobLife })

// MaxReplayWeight is the maximum of replayWeight.
const MaxReplayWeight = 100

// SupervisedSpec holds the fields of a supervised fine-tuning job that the caller sets.
type SupervisedSpec struct {
	TrainingConfig
	DisplayName       string `json:"displayName"`
	Dataset           string `json:"dataset"`
	EvaluationDataset string `json:"evaluationDataset,omitempty"`
	EvalAutoCarveout  bool   `json:"evalAutoCarveout,omitempty"`
	EarlyStop         bool   `json:"earlyStop,omitempty"`
	IsTurbo           bool   `json:"isTurbo,omitempty"`
	// weight of the divergence from the initial model on its own responses to synthetic prompts; 0
	// replays none
	ReplayWeight         float64            `json:"replayWeight,omitempty"`
	Nodes                int                `json:"nodes,omitempty"`
	MTPEnabled           bool               `json:"mtpEnabled,omitempty"`
	MTPNumDraftTokens    int                `json:"mtpNumDraftTokens,omitempty"`
	MTPFreezeBaseModel   bool               `json:"mtpFreezeBaseModel,omitempty"`
	MetricsFileSignedURL SignedURL          `json:"metricsFileSignedUrl,omitempty"`
	TrackerConfig        *TrackerConfig     `json:"trackerConfig,omitempty"`
	ObjectStoreConfig    *ObjectStoreConfig `json:"objectStoreConfig,omitempty"`
}

// SupervisedJob is the state of one supervised fine-tuning job.
type SupervisedJob struct {
	SupervisedSpec `json:"spec"`
	JobLife        `json:"life"`
	// estimate at creation; nil if the dataset was not READY then
	EstimatedCost *Money `json:"estimatedCost,omitempty"`

	// the complete MetricsFileSignedURL, sealed; nil if the URL has no secret (see HasSecret), and
	// for jobs that earlier versions created
	SealedMetricsURL *Sealed `json:"sealedMetricsFileSignedUrl,omitempty"`
}

// holdsOut reports whether the platform holds out rows of the dataset for evaluation. A job with
// earlyStop needs evaluation rows, even if it names none.
func (s SupervisedSpec) holdsOut() bool {
	return s.EvalAutoCarveout || s.EarlyStop && s.EvaluationDataset == ""
}

// Spec implements Job.
func (j SupervisedJob) Spec() JobSpec {
	spec := JobSpec{
		DisplayName: j.DisplayName, Method: MethodSupervised, Nodes: j.SupervisedSpec.Nodes, Turbo: j.IsTurbo,
		Shapes: supervisedShapes, MinRows: MinExamples, Dataset: j.Dataset, EvaluationDataset: j.EvaluationDataset,
		AutoCarveout: j.holdsOut(), Config: j.TrainingConfig, EarlyStop: j.EarlyStop,
		ReplayWeight: j.ReplayWeight,
		Tracker:      j.TrackerConfig, MetricsURL: j.SealedMetricsURL, Secrets: secretsOf(j.ObjectStoreConfig, nil),
	}
	j.Options.apply(&spec)
	return spec
}

var supervisedShapes = []string{ShapeChat, ShapeCompletion}

// References implements Referrer.
func (j SupervisedJob) References(Name) []string { return j.activeReferences(j.Spec().references()) }

type SupervisedJobCreated struct {
	SupervisedSpec
	CreatedBy     string     `json:"createdBy"`
	Deadline      *time.Time `json:"deadline,omitempty"`
	EstimatedCost *Money     `json:"estimatedCost,omitempty"`

	SealedMetricsURL *Sealed     `json:"sealedMetricsFileSignedUrl,omitempty"`
	Options          *JobOptions `json:"options,omitempty"`
}

func (e SupervisedJobCreated) Evolve(j *SupervisedJob) {
	*j = SupervisedJob{e.SupervisedSpec, newJobLife(e.CreatedBy, e.Deadline).withOptions(e.Options), e.EstimatedCost,
		e.SealedMetricsURL}
}

// CreateSupervisedJob creates a job. ID is the last part of the job's name, and the default of
// outputModel. MetricsFileSignedURL is the complete URL, which is recorded only as
// SealedMetricsURL.
type CreateSupervisedJob struct {
	SupervisedSpec
	ID               string
	CreatedBy        string
	Deadline         *time.Time
	EstimatedCost    *Money
	SealedMetricsURL *Sealed // the sealed MetricsFileSignedURL; nil if the URL has no secret
	Options          *JobOptions
}

func (c CreateSupervisedJob) Decide(j SupervisedJob, now time.Time) (Event[SupervisedJob], error) {
	if j.Exists() {
		return nil, alreadyExists("a supervised fine-tuning job")
	}
	v := c.check()
	c.Options.check(&v, c.TrainingConfig)
	c.MetricsFileSignedURL.check(&v, "metricsFileSignedUrl", c.SealedMetricsURL)
	inFuture(&v, "deadline", c.Deadline, now)
	if err := v.Err(); err != nil {
		return nil, err
	}
	spec := c.SupervisedSpec
	spec.TrainingConfig = spec.withDefaults(c.ID)
	spec.MetricsFileSignedURL = spec.MetricsFileSignedURL.Address()
	return SupervisedJobCreated{spec, c.CreatedBy, c.Deadline, c.EstimatedCost, c.SealedMetricsURL, c.Options}, nil
}

func (s SupervisedSpec) check() Violations {
	var v Violations
	s.TrainingConfig.check(&v, "")
	v.Require(s.ReplayWeight >= 0 && s.ReplayWeight <= MaxReplayWeight, "replayWeight",
		"must be from 0 to %d; 0 disables replay, and 2 suits most datasets", MaxReplayWeight)
	checkText(&v, s.DisplayName, "")
	v.Require(s.Dataset != "", "dataset", "is required")
	checkData(&v, s.Dataset, s.EvaluationDataset, s.EvalAutoCarveout)
	v.Require(s.Nodes >= 0 && s.Nodes <= MaxJobNodes, "nodes",
		"must be from 0 to %d; 0 stands for the default, 1", MaxJobNodes)
	v.Require(s.MTPNumDraftTokens >= 0 && s.MTPNumDraftTokens <= 64, "mtpNumDraftTokens", "must be from 0 to 64")
	s.TrackerConfig.check(&v)
	return v
}
