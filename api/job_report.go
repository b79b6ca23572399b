package api

import (
	"math"
	"strings"
	"time"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	"anneal/projections/live"
)

// A JobReport is what a job of any kind shows of its life.
type JobReport struct {
	CreateTime         *time.Time              `json:"createTime,omitempty" api:"output"`
	UpdateTime         *time.Time              `json:"updateTime,omitempty" api:"output"`
	CompletedTime      *time.Time              `json:"completedTime,omitempty" api:"output"`
	State              string                  `json:"state" api:"output"`
	Status             domain.Status           `json:"status" api:"output"`
	CreatedBy          string                  `json:"createdBy,omitempty" api:"output"`
	JobProgress        *JobProgress            `json:"jobProgress,omitempty" api:"output"`
	AcceleratorSeconds map[string]domain.Count `json:"acceleratorSeconds,omitempty" api:"output"`
	Attempt            int                     `json:"attempt" api:"output"`
	InputDatasets      *domain.JobInputs       `json:"inputDatasets,omitempty" api:"output"` // made of the job's own dataset
}

func reportOf[S any](v *projections.View, row *projections.Row[S], job domain.Job) JobReport {
	l := job.Life()
	report := JobReport{CreateTime: wire.TimestampOf(&row.CreateTime), UpdateTime: wire.TimestampOf(&row.UpdateTime), CompletedTime: l.CompletedTime,
		State: l.State, Status: queued(v, job), CreatedBy: l.CreatedBy, Attempt: l.Attempt, JobProgress: progressOf(v, row.Name, row.CreateTime, l), InputDatasets: l.Inputs}
	for accelerator, seconds := range l.Seconds {
		if report.AcceleratorSeconds == nil {
			report.AcceleratorSeconds = map[string]domain.Count{}
		}
		report.AcceleratorSeconds[accelerator] = domain.Count(seconds)
	}
	return report
}

// queued is the status of a job that may wait for room: what nodes lack for it,
// and what would help.
func queued(v *projections.View, job domain.Job) domain.Status {
	l := job.Life()
	if v == nil || l.State != domain.JobPendingState || !strings.HasPrefix(l.Status.Message, domain.HeldPrefix+domain.HeldForRoom) {
		return l.Status
	}
	return domain.Status{Code: l.Status.Code, Message: domain.HeldPrefix + domain.HeldForRoom + ": " + v.Feasibility(job.Spec().Need()).String()}
}

// TrackerConfig is an experiment tracker on the wire. Its key is in the answer
// to the create that brought it and never again.
type TrackerConfig struct {
	Enabled bool   `json:"enabled"`
	APIKey  string `json:"apiKey,omitempty" api:"input" query:"-"`
	Project string `json:"project,omitempty"`
	Entity  string `json:"entity,omitempty"`
	RunID   string `json:"runId,omitempty"`
	URL     string `json:"url,omitempty" api:"output"`

	sealed *domain.Sealed
}

// JobProgress is how far a job is, as its worker last reported. Requests are the
// answers that a job has its model write; kinds that have none written count 0.
type JobProgress struct {
	Percent                int                `json:"percent"`
	Epoch                  int                `json:"epoch"` // completed ones
	Step                   int                `json:"step"`
	Steps                  int                `json:"steps"` // expected in all
	TotalInputRequests     int                `json:"totalInputRequests"`
	TotalProcessedRequests int                `json:"totalProcessedRequests"`
	SuccessfulRequests     int                `json:"successfullyProcessedRequests"`
	FailedRequests         int                `json:"failedRequests"`
	OutputRows             int                `json:"outputRows"`
	InputTokens            domain.Count       `json:"inputTokens"`
	OutputTokens           domain.Count       `json:"outputTokens"`
	CachedInputTokens      domain.Count       `json:"cachedInputTokenCount"`
	SecondsLeft            int                `json:"secondsLeft,omitempty"` // while it is at work, as long as its latest steps took
	Metrics                map[string]float64 `json:"metrics,omitempty"`     // the newest row: train/loss …
}

func (t *TrackerConfig) kept() *domain.TrackerConfig {
	if t == nil {
		return nil
	}
	return &domain.TrackerConfig{Enabled: t.Enabled, APIKey: t.sealed, Project: t.Project, Entity: t.Entity, RunID: t.RunID}
}

// withKeyOf is the tracker as the answer to the create that gave it shows it.
func (t *TrackerConfig) withKeyOf(given *TrackerConfig) {
	if t != nil && given != nil {
		t.APIKey = given.APIKey
	}
}

func shownTracker(t *domain.TrackerConfig) *TrackerConfig {
	if t == nil {
		return nil
	}
	return &TrackerConfig{Enabled: t.Enabled, Project: t.Project, Entity: t.Entity, RunID: t.RunID, URL: t.URL}
}

// progressOf is how far the job of a name is; made is when it was created. While
// it is at work the pulse knows best, and otherwise the log, which outlives it.
func progressOf(v *projections.View, name domain.Name, made time.Time, life *domain.JobLife) *JobProgress {
	finished := life.State == domain.JobCompletedState || life.State == domain.JobEarlyState
	at, known := lastHeard(v, name, made)
	if recorded := life.Progress; recorded != nil && (!known || !life.Active()) {
		at, known = *recorded, true
	}
	if !known && !finished {
		return nil
	}
	p := &JobProgress{Percent: live.Progress{Step: at.Step, Steps: at.Steps}.Percent(), Epoch: int(at.Epoch), Step: at.Step, Steps: at.Steps,
		InputTokens: domain.Count(at.Tokens), Metrics: at.Metrics}
	p.count()
	if finished {
		p.Percent = 100
	}
	if known && life.State == domain.JobRunningState {
		p.SecondsLeft = secondsLeft(v, name, at)
	}
	return p
}

// pacedBy is how many of the latest steps say how long the rest will take.
const pacedBy = 100

// secondsLeft is how long a job's steps that are left will take if they are like
// its latest; 0 where that is not known. A pause among these, which is what took
// longer than all others together, is left out.
func secondsLeft(v *projections.View, name domain.Name, at domain.JobProgress) int {
	if v == nil || at.Steps <= at.Step {
		return 0
	}
	type stretch struct {
		took  time.Duration
		steps int
	}
	var all, longest stretch
	var before live.MetricRow
	parts := 0
	latest, _ := v.Live.Latest(name)
	for row := range v.Live.Metrics(name, latest.Step-pacedBy-1) {
		if parts++; parts > 1 {
			one := stretch{max(row.Time.Sub(before.Time), 0), row.Step - before.Step}
			all.took, all.steps = all.took+one.took, all.steps+one.steps
			if one.took > longest.took {
				longest = one
			}
		}
		before = row
	}
	if parts > 4 && longest.took > all.took/2 {
		all.took, all.steps = all.took-longest.took, all.steps-longest.steps
	}
	if all.steps == 0 {
		return 0
	}
	return int(math.Ceil((all.took / time.Duration(all.steps) * time.Duration(at.Steps-at.Step)).Seconds()))
}

// lastHeard is what the pulse knows of a job's progress.
func lastHeard(v *projections.View, name domain.Name, made time.Time) (at domain.JobProgress, known bool) {
	if v == nil {
		return at, false
	}
	progress, known := v.Live.Progress(name)
	if !known || !progress.Made.Equal(made) {
		return at, false
	}
	latest, _ := v.Live.Latest(name)
	return domain.JobProgress{Step: progress.Step, Steps: progress.Steps, Epoch: progress.Epoch, Tokens: progress.Tokens, Metrics: latest.Values}, true
}

// count takes the counts of requests from the metrics in which trainers that
// have answers written tell them.
func (p *JobProgress) count() {
	of := func(metric string) int { return int(p.Metrics[metric]) }
	p.TotalInputRequests, p.TotalProcessedRequests, p.FailedRequests = of(engines.RolloutsExpected), of(engines.RolloutsDone), of(engines.RolloutsFailed)
	p.SuccessfulRequests = p.TotalProcessedRequests - p.FailedRequests
	p.OutputRows, p.OutputTokens, p.CachedInputTokens = of(engines.RolloutRows), domain.Count(of(engines.RolloutTokens)), domain.Count(of(engines.RolloutCached))
}
