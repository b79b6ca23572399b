package rest

import (
	"cmp"
	"math"
	"time"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	"anneal/projections/live"
)

// A JobReport has the output fields that all kinds of jobs have.
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
	Priority           string                  `json:"priority,omitempty" api:"output"`
	Queue              *JobQueue               `json:"queue,omitempty" api:"output"`
	// InputDatasets names the parts of the dataset that the job uses for training and for
	// evaluation.
	InputDatasets *domain.JobInputs `json:"inputDatasets,omitempty" api:"output"`
}

func reportOf[S any](v *projections.View, row *projections.Row[S], job domain.Job) JobReport {
	l := job.Life()
	report := JobReport{CreateTime: wire.TimestampOf(&row.CreateTime), UpdateTime: wire.TimestampOf(&row.UpdateTime),
		CompletedTime: l.CompletedTime,
		State:         l.State, Status: withTracking(queueStatus(v, row.Name, job).HideNodes(), l.Tracking),
		CreatedBy: creatorOf(v, l.CreatedBy), Attempt: l.Attempt, Priority: string(l.Priority),
		JobProgress: progressOf(v, row.Name, row.CreateTime, l), InputDatasets: l.Inputs}
	for accelerator, seconds := range l.Seconds {
		if report.AcceleratorSeconds == nil {
			report.AcceleratorSeconds = map[string]domain.Count{}
		}
		report.AcceleratorSeconds[accelerator] = domain.Count(seconds)
	}
	return report
}

// dependentOfJobs returns resource.dependent of a kind of job. progress names further fields that
// follow from the progress of a job.
func dependentOfJobs[S any](progress ...string) map[string]func(*projections.Row[S]) bool {
	life := func(row *projections.Row[S]) *domain.JobLife { return any(&row.State).(domain.Job).Life() }
	waits := func(row *projections.Row[S]) bool {
		state := life(row).State
		return state == domain.JobPendingState || state == domain.JobValidatingState
	}
	all := map[string]func(*projections.Row[S]) bool{"status": waits, "queue": waits}
	for _, field := range append(progress, "jobProgress") {
		all[field] = func(row *projections.Row[S]) bool {
			l := life(row)
			return l.Active() || l.State == domain.JobRunningState || l.Progress == nil
		}
	}
	return all
}

// queueStatus returns the status of a job. If the job waits for capacity, the message states what
// the nodes lack and what would help. It names no nodes, because accounts may not see them.
func queueStatus(v *projections.View, name domain.Name, job domain.Job) domain.Status {
	l := job.Life()
	if v == nil || l.State != domain.JobPendingState || !l.HeldForCapacity() {
		return l.Status
	}
	return domain.Status{Code: l.Status.Code, Message: domain.HeldPrefix + domain.HeldForCapacity + ": " +
		v.Feasibility(v.NeedOfJob(name.Account(), job.Spec())).String()}
}

// withTracking returns the status of a job. If the tracker rejects what the server sends, it
// appends the reason to the message. It does not change the code, because the job does not depend
// on the tracker.
func withTracking(status domain.Status, tracking *domain.JobTracking) domain.Status {
	if tracking == nil || tracking.Problem == "" {
		return status
	}
	if status.Message != "" {
		status.Message += "; "
	}
	status.Message += tracking.Problem
	return status
}

// TrackerConfig is the wire type of a job's experiment tracker. Only the response to the request
// that creates the job contains APIKey.
type TrackerConfig struct {
	Enabled bool   `json:"enabled"`
	APIKey  string `json:"apiKey,omitempty" api:"input" query:"-"`
	Project string `json:"project,omitempty"`
	Entity  string `json:"entity,omitempty"`
	RunID   string `json:"runId,omitempty"`
	URL     string `json:"url,omitempty" api:"output"`
}

// JobProgress is the progress of a job, as its trainer last reported it.
//
// TotalInputRequests, TotalProcessedRequests, SuccessfulRequests and FailedRequests count rollouts
// of a reinforcement job: all that are expected, all that were scored, those with a valid score,
// and those without a valid score. They are 0 for other jobs.
//
// TrainedTokens counts the tokens that optimizer steps have processed. InputTokens counts the
// tokens that the job has read: for a reinforcement job, the prompt tokens of all rollouts,
// including the CachedInputTokens that were found in the prefix cache; for other jobs, the same as
// TrainedTokens. OutputTokens counts the tokens that were generated in rollouts.
type JobProgress struct {
	Percent                int          `json:"percent"`
	Epoch                  int          `json:"epoch"` // number of completed epochs
	Step                   int          `json:"step"`
	Steps                  int          `json:"steps"` // expected total number of optimizer steps
	TotalInputRequests     int          `json:"totalInputRequests"`
	TotalProcessedRequests int          `json:"totalProcessedRequests"`
	SuccessfulRequests     int          `json:"successfullyProcessedRequests"`
	FailedRequests         int          `json:"failedRequests"`
	OutputRows             int          `json:"outputRows"`
	InputTokens            domain.Count `json:"inputTokens"`
	OutputTokens           domain.Count `json:"outputTokens"`
	CachedInputTokens      domain.Count `json:"cachedInputTokenCount"`
	TrainedTokens          domain.Count `json:"trainedTokens"`
	// SecondsLeft is the estimated remaining time of a running job, from the duration of its latest
	// steps.
	SecondsLeft int                `json:"secondsLeft,omitempty"`
	Metrics     map[string]float64 `json:"metrics,omitempty"` // newest metrics by name, such as train/loss
}

func (t *TrackerConfig) stored(key *domain.Sealed) *domain.TrackerConfig {
	if t == nil {
		return nil
	}
	return &domain.TrackerConfig{Enabled: t.Enabled, APIKey: key, Project: t.Project, Entity: t.Entity,
		RunID: t.RunID}
}

// addKeyOf copies the API key of given, the tracker in the create request, to t, the tracker in the
// response.
func (t *TrackerConfig) addKeyOf(given *TrackerConfig) {
	if t != nil && given != nil {
		t.APIKey = given.APIKey
	}
}

// renderTracker returns a job's tracker as responses contain it. tracking has the run in the
// tracker; nil if there is none.
func renderTracker(t *domain.TrackerConfig, tracking *domain.JobTracking) *TrackerConfig {
	if t == nil {
		return nil
	}
	out := &TrackerConfig{Enabled: t.Enabled, Project: t.Project, Entity: t.Entity, RunID: t.RunID, URL: t.URL}
	if tracking != nil {
		out.RunID, out.URL = cmp.Or(t.RunID, tracking.RunID), cmp.Or(tracking.URL, t.URL)
	}
	return out
}

// progressOf returns the progress of the job that was created at createTime, and not of an earlier
// job with the same name. It prefers the live status, which is newer than the log while the job is
// active but may be lost after its end.
func progressOf(v *projections.View, name domain.Name, createTime time.Time, life *domain.JobLife) *JobProgress {
	finished := life.State == domain.JobCompletedState || life.State == domain.JobEarlyStoppedState
	at, known := liveProgress(v, name, createTime)
	if recorded := life.Progress; recorded != nil && (!known || !life.Active()) {
		at, known = *recorded, true
	}
	if !known && !finished {
		return nil
	}
	p := &JobProgress{Percent: live.Progress{Step: at.Step, Steps: at.Steps}.Percent(), Epoch: int(at.Epoch),
		Step: at.Step, Steps: at.Steps,
		InputTokens: domain.Count(at.Tokens), TrainedTokens: domain.Count(at.Tokens), Metrics: at.Metrics}
	if name.Collection() == domain.ReinforcementJobs.Collection {
		p.fillRollouts()
	}
	if finished {
		p.Percent = 100
	}
	if known && life.State == domain.JobRunningState {
		p.SecondsLeft = secondsLeft(v, name, at)
	}
	return p
}

// maxPaceSteps is the maximum number of latest steps from whose duration the remaining time is
// estimated.
const maxPaceSteps = 100

// secondsLeft estimates the remaining time of a job from the duration of its latest steps. It
// returns 0 if too few steps are known. It leaves out a pause: an interval between two steps that
// is longer than all other intervals together.
func secondsLeft(v *projections.View, name domain.Name, at domain.JobProgress) int {
	if v == nil || at.Steps <= at.Step {
		return 0
	}
	type span struct {
		duration time.Duration
		steps    int
	}
	var total, longest span
	var previous live.MetricRow
	parts := 0
	latest, _ := v.Live.Latest(name)
	for row := range v.Live.Metrics(name, latest.Step-maxPaceSteps-1) {
		if parts++; parts > 1 {
			s := span{max(row.Time.Sub(previous.Time), 0), row.Step - previous.Step}
			total.duration, total.steps = total.duration+s.duration, total.steps+s.steps
			if s.duration > longest.duration {
				longest = s
			}
		}
		previous = row
	}
	if parts > 4 && longest.duration > total.duration/2 {
		total.duration, total.steps = total.duration-longest.duration, total.steps-longest.steps
	}
	if total.steps == 0 {
		return 0
	}
	return int(math.Ceil((total.duration / time.Duration(total.steps) * time.Duration(at.Steps-at.Step)).Seconds()))
}

// liveProgress returns the progress of the job that was created at createTime from the live status.
// known is false if the live status does not have it.
func liveProgress(v *projections.View, name domain.Name, createTime time.Time) (found domain.JobProgress, known bool) {
	if v == nil {
		return found, false
	}
	progress, known := v.Live.Progress(name)
	if !known || !progress.Made.Equal(createTime) {
		return found, false
	}
	latest, _ := v.Live.Latest(name)
	return domain.JobProgress{Step: progress.Step, Steps: progress.Steps, Epoch: progress.Epoch, Tokens: progress.Tokens,
		Metrics: latest.Values}, true
}

// fillRollouts sets the numbers of requests and tokens from the metrics of a reinforcement job's
// trainer.
func (p *JobProgress) fillRollouts() {
	of := func(metric string) int { return int(p.Metrics[metric]) }
	p.TotalInputRequests, p.TotalProcessedRequests, p.FailedRequests = of(engines.RolloutsExpected),
		of(engines.RolloutsDone), of(engines.RolloutsFailed)
	p.SuccessfulRequests = p.TotalProcessedRequests - p.FailedRequests
	p.OutputRows, p.OutputTokens, p.CachedInputTokens = of(engines.RolloutRows), domain.Count(of(engines.RolloutTokens)),
		domain.Count(of(engines.RolloutCached))
	// trainers of earlier releases reported only the cached tokens
	p.InputTokens = max(domain.Count(of(engines.RolloutPrompts)), p.CachedInputTokens)
}
