package routing

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/live"
)

// releases has the samples that this gateway has counted in the current steps of releases.
type releases struct {
	boot string // random ID of this process, whose samples begin at 0

	mu        sync.Mutex
	of        map[domain.Name]*stepSamples
	scheduled bool // a flush is scheduled
}

// stepSamples has the samples of one step.
type stepSamples struct {
	step      live.ReleaseStep
	samples   domain.ReleaseSamples
	inFlight  int   // number of requests to the candidate in progress
	evaluated int64 // number of samples of the candidate when they were last evaluated
	changed   bool  // since the last flush
	unsent    bool  // since the last message to other gateways
}

// flushDelay is the time after a sample at which the live status has it.
const flushDelay = 50 * time.Millisecond

// samplesOf returns the samples of a step. Those of an earlier step are discarded; it returns nil
// for a step before the current one.
func (r *releases) samplesOf(step live.ReleaseStep) *stepSamples {
	if r.of == nil {
		r.of = map[domain.Name]*stepSamples{}
	}
	known := r.of[step.Deployment]
	if known != nil && known.step == step {
		return known
	}
	if known != nil && known.step.After(step) {
		return nil
	}
	known = &stepSamples{step: step}
	r.of[step.Deployment] = known
	return known
}

// enter counts a request to the candidate that is in progress until leave is called. It returns
// false if too many are.
func (r *releases) enter(step live.ReleaseStep) (leave func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.samplesOf(step)
	if s == nil || int64(s.inFlight) >= max(minInFlight, s.samples.Candidate.Requests) {
		return nil, false
	}
	s.inFlight++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		s.inFlight--
	}, true
}

// isStopped reports whether this gateway has seen that the candidate broke a rule in this step.
func (r *releases) isStopped(step live.ReleaseStep) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.samplesOf(step)
	return s != nil && s.samples.Failed != ""
}

// record counts a sample. Samples of the candidate are evaluated, together with those of the other
// gateways, so that this gateway stops sending requests to a bad candidate before the scheduler has
// rolled the release back.
func (r *releases) record(c *request.Call, t *domain.TrafficSplit, step live.ReleaseStep, candidate bool,
	sample domain.ArmSamples) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.samplesOf(step)
	if s == nil {
		return
	}
	s.changed, s.unsent = true, true
	if candidate {
		s.samples.Candidate = s.samples.Candidate.Plus(sample)
	} else {
		s.samples.Stable = s.samples.Stable.Plus(sample)
	}
	n := s.samples.Candidate.Requests
	if candidate && s.samples.Failed == "" && (sample.Errors > 0 || n-s.evaluated > n/64) {
		all := s.samples.Plus(c.World.View().Live.ReleaseElsewhere(step))
		s.evaluated = n
		// the time limit of the step is left to the scheduler
		if evaluation := t.Evaluate(all, t.Since); evaluation.Decision == domain.ReleaseFails {
			s.samples.Failed = evaluation.Reason
		}
	}
	if !r.scheduled {
		r.scheduled = true
		time.AfterFunc(flushDelay, func() { r.flush(c.World, c.Now) })
	}
}

// flush passes the changed samples to the live status, for the scheduler.
func (r *releases) flush(world *projections.World, now func() time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scheduled = false
	r.prune(world.View())
	for _, s := range r.of {
		if s.changed {
			s.changed = false
			world.Live().RecordRelease("", s.step, s.samples, now())
		}
	}
}

// prune drops the samples of steps that have ended.
func (r *releases) prune(v *projections.View) {
	for name, s := range r.of {
		row, ok := v.Deployments.Get(name)
		if !ok || !row.State.Release.Splits() || stepOf(row).After(s.step) {
			delete(r.of, name)
		}
	}
}

// stepOf returns the current step of the newest release of a deployment.
func stepOf(row *projections.Row[domain.Deployment]) live.ReleaseStep {
	return live.ReleaseStep{Deployment: row.Name, Created: row.CreateVersion, Number: row.State.Release.Number,
		Step: row.State.Release.Step}
}

// A releaseMessage tells other gateways what a gateway has counted since the beginning of a step.
type releaseMessage struct {
	Boot    string                `json:"boot"` // of the gateway
	Release live.ReleaseStep      `json:"release"`
	Samples domain.ReleaseSamples `json:"samples"`
}

// TakeReleases returns messages for the other gateways with the samples of this one in the current
// steps: of steps with new samples or, if all is true, of all. A message has all samples of its
// step, so a lost message loses nothing once a later one arrives.
func (r *Router) TakeReleases(v *projections.View, all bool) (messages [][]byte) {
	r.releases.mu.Lock()
	defer r.releases.mu.Unlock()
	r.releases.prune(v)
	for _, s := range r.releases.of {
		if s.unsent || all {
			s.unsent = false
			message, _ := json.Marshal(releaseMessage{r.releases.boot, s.step, s.samples}) // such values can always be marshaled
			messages = append(messages, message)
		}
	}
	return messages
}

// AddRelease records the samples in a message that TakeReleases of another gateway returned. ok is
// false for another kind of message.
func AddRelease(status *live.Status, gateway string, message []byte, now time.Time) (ok bool, err error) {
	if len(message) == 0 || message[0] != '{' {
		return false, nil
	}
	var m releaseMessage
	if err := json.Unmarshal(message, &m); err != nil {
		return true, fmt.Errorf("decode the message of another gateway: %w", err)
	}
	if !m.Samples.Valid() {
		return true, fmt.Errorf("the message of another gateway has impossible samples of %s", m.Release.Deployment)
	}
	status.RecordRelease(gateway+"/"+m.Boot, m.Release, m.Samples, now)
	return true, nil
}

// discardedHeaders returns the writer of a copy of a request, whose response is discarded.
func discardedHeaders() http.ResponseWriter { return discarded{http.Header{}} }

type discarded struct{ header http.Header }

// Header implements http.ResponseWriter.
func (d discarded) Header() http.Header { return d.header }

// Write implements http.ResponseWriter.
func (discarded) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader implements http.ResponseWriter.
func (discarded) WriteHeader(int) {}
