package api

import (
	"time"

	"anneal/domain"
	"anneal/projections"
)

// SupervisedJob is a supervised fine-tuning job on the wire.
type SupervisedJob struct {
	Name string `json:"name" api:"output"`
	domain.SupervisedSpec
	TrackerConfig      *TrackerConfig          `json:"trackerConfig,omitempty"`
	CreateTime         *time.Time              `json:"createTime,omitempty" api:"output"`
	UpdateTime         *time.Time              `json:"updateTime,omitempty" api:"output"`
	CompletedTime      *time.Time              `json:"completedTime,omitempty" api:"output"`
	State              string                  `json:"state" api:"output"`
	Status             domain.Status           `json:"status" api:"output"`
	CreatedBy          string                  `json:"createdBy,omitempty" api:"output"`
	JobProgress        *JobProgress            `json:"jobProgress,omitempty" api:"output"`
	AcceleratorSeconds map[string]domain.Count `json:"acceleratorSeconds,omitempty" api:"output"`
	Attempt            int                     `json:"attempt" api:"output"`
}

// TrackerConfig is an experiment tracker on the wire. Its key is only ever
// given, never answered.
type TrackerConfig struct {
	Enabled bool   `json:"enabled"`
	APIKey  string `json:"apiKey,omitempty" api:"input" query:"-"`
	Project string `json:"project,omitempty"`
	Entity  string `json:"entity,omitempty"`
	RunID   string `json:"runId,omitempty"`
	URL     string `json:"url,omitempty" api:"output"`

	sealed *domain.Sealed
}

// JobProgress is how far a job is, as its worker last reported.
type JobProgress struct {
	Percent     int                `json:"percent"`
	Epoch       int                `json:"epoch"` // completed ones
	Step        int                `json:"step"`
	Steps       int                `json:"steps"` // expected in all
	InputTokens domain.Count       `json:"inputTokens"`
	Metrics     map[string]float64 `json:"metrics,omitempty"` // the newest row: train/loss …
}

var supervisedJobs = &resource[domain.SupervisedJob, SupervisedJob]{
	kind: domain.SupervisedJobs, noun: "supervised fine-tuning job", idParam: "supervisedFineTuningJobId",
	reads: toRead, writes: toWrite,
	fields:  projections.FieldsOf[SupervisedJob](),
	render:  renderSupervisedJob,
	prepare: prepareSupervisedJob,
	create: func(c *call, name domain.Name, given *SupervisedJob) domain.Command[domain.SupervisedJob] {
		spec := given.SupervisedSpec
		spec.TrackerConfig = given.TrackerConfig.kept()
		spec.Region = specified(spec.Region)
		return domain.CreateSupervisedJob{SupervisedSpec: spec, ID: name.ID(), CreatedBy: string(c.caller.key)}
	},
	remove: removeJob[domain.SupervisedJob](domain.SupervisedJobs),
	after: func(c *call, row *projections.Row[domain.SupervisedJob]) {
		if t := row.State.SupervisedSpec.TrackerConfig; t != nil && t.APIKey != nil {
			c.shred([]domain.Sealed{*t.APIKey}, nil)
		}
	},
}

func (t *TrackerConfig) kept() *domain.TrackerConfig {
	if t == nil {
		return nil
	}
	return &domain.TrackerConfig{Enabled: t.Enabled, APIKey: t.sealed, Project: t.Project, Entity: t.Entity, RunID: t.RunID}
}

func shownTracker(t *domain.TrackerConfig) *TrackerConfig {
	if t == nil {
		return nil
	}
	return &TrackerConfig{Enabled: t.Enabled, Project: t.Project, Entity: t.Entity, RunID: t.RunID, URL: t.URL}
}

func renderSupervisedJob(v *projections.View, row *projections.Row[domain.SupervisedJob], out *SupervisedJob) {
	j := &row.State
	*out = SupervisedJob{Name: string(row.Name), SupervisedSpec: j.SupervisedSpec, TrackerConfig: shownTracker(j.SupervisedSpec.TrackerConfig),
		CreateTime: stamp(row.CreateTime), UpdateTime: stamp(row.UpdateTime), CompletedTime: j.CompletedTime,
		State: j.State, Status: j.Status, CreatedBy: j.CreatedBy, Attempt: j.Attempt,
		JobProgress: progressOf(v, row.Name, &j.JobLife)}
	for accelerator, seconds := range j.Seconds {
		if out.AcceleratorSeconds == nil {
			out.AcceleratorSeconds = map[string]domain.Count{}
		}
		out.AcceleratorSeconds[accelerator] = domain.Count(seconds)
	}
}

func progressOf(v *projections.View, name domain.Name, life *domain.JobLife) *JobProgress {
	finished := life.State == domain.JobCompletedState || life.State == domain.JobEarlyState
	p := &JobProgress{}
	if v != nil {
		progress, known := v.Pulse.Progress(name)
		if !known && !finished {
			return nil
		}
		*p = JobProgress{Percent: progress.Percent(), Epoch: int(progress.Epoch), Step: progress.Step, Steps: progress.Steps, InputTokens: domain.Count(progress.Tokens)}
		if latest, ok := v.Pulse.Latest(name); ok {
			p.Metrics = latest.Values
		}
	}
	if finished {
		p.Percent = 100
	}
	return p
}

// prepareSupervisedJob makes sure that the account may start work, and that
// what the job names is there and may be used by it.
func prepareSupervisedJob(c *call, name domain.Name, given *SupervisedJob, _ map[string]string, v *domain.Violations) error {
	if err := c.mayWork(c.account); err != nil {
		return err
	}
	c.wantDataset(v, "dataset", given.Dataset)
	c.wantDataset(v, "evaluationDataset", given.EvaluationDataset)
	c.wantModel(v, "baseModel", given.BaseModel, domain.BaseModel)
	c.wantModel(v, "warmStartFrom", given.WarmStartFrom, domain.PEFTAddon)
	c.wantFreeModel(v, "outputModel", given.OutputModel, name.ID())
	if s := given.ObjectStoreConfig; s != nil {
		c.wantSecret(v, "objectStoreConfig.credentialsSecret", s.CredentialsSecret)
	}
	if t := given.TrackerConfig; t != nil && t.APIKey != "" && len(*v) == 0 {
		return c.seal(name, "trackerConfig.apiKey", 1, t.APIKey, &t.sealed)
	}
	return nil
}

// wantDataset requires that a reference, when it is given and well formed,
// names a dataset of the account.
func (c *call) wantDataset(v *domain.Violations, field, ref string) {
	name, ok := domain.ParseName(ref, domain.Datasets.Collection)
	if !ok {
		return // the decision says what is wrong with its form
	}
	_, exists := c.snapshot().Datasets.Get(name)
	v.Require(exists && name.Account() == c.account, field, "names no dataset of accounts/%s: create it first, or correct the name", c.account)
}

// wantModel requires that a reference, when it is given and well formed, names
// a READY model that the account may use; kind "" is any.
func (c *call) wantModel(v *domain.Violations, field, ref, kind string) {
	if _, ok := domain.ParseName(ref, domain.Models.Collection); !ok {
		return
	}
	row, usable := c.usableModel(c.account, ref)
	switch {
	case !usable:
		v.Add(field, "names no model that accounts/%s may use: its own and public ones are listed at /inference/v1/models and in accounts/%s/models", c.account, publicAccount)
	case row.State.State != domain.ModelReady:
		v.Add(field, "names a model that is %s: wait until it is READY", row.State.State)
	case kind == domain.BaseModel && row.State.Kind != kind:
		v.Add(field, "names an adapter: give it as warmStartFrom")
	case kind == domain.PEFTAddon && row.State.Kind != kind:
		v.Add(field, "names a whole model: give it as baseModel")
	}
}

// wantFreeModel requires that the model a job will make does not exist yet.
func (c *call) wantFreeModel(v *domain.Violations, field, ref, jobID string) {
	id := ref
	if name, ok := domain.ParseName(ref, domain.Models.Collection); ok {
		v.Require(name.Account() == c.account, field, "must be a model of accounts/%s", c.account)
		id = name.ID()
	}
	if id == "" {
		id = jobID
	}
	name := domain.NewName(c.account, domain.Models.Collection, id)
	_, taken := c.snapshot().Models.Get(name)
	v.Require(!taken, field, "%s exists already: choose another ID for the result", name)
}

func (c *call) wantSecret(v *domain.Violations, field, ref string) {
	if ref == "" {
		return
	}
	name, ok := domain.ParseName(ref, domain.Secrets.Collection)
	if ok {
		_, ok = c.snapshot().Secrets.Get(name)
	}
	v.Require(ok && name.Account() == c.account, field, "must name a secret of accounts/%s, like accounts/%s/secrets/ID", c.account, c.account)
}
