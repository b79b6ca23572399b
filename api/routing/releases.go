package routing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog/metering"
	"anneal/projections"
	"anneal/projections/live"
)

// Limits of the requests to the candidate of a release.
const (
	// candidateFirstToken is how long the candidate may take to begin a response. Then the stable
	// deployment gets the request.
	candidateFirstToken = 30 * time.Second
	// candidateQueueWait is how long a request may wait in the admission queue of the candidate.
	candidateQueueWait = 2 * time.Second
	// minInFlight is the number of requests to a candidate that may be in progress on this gateway
	// before any has ended. Later, as many may be in progress as have ended in the step, so that a bad
	// candidate gets few requests however high the load is.
	minInFlight = 8
	// maxMirrored is the maximum number of mirrored requests to a candidate that are in progress on
	// this gateway. Further requests are not mirrored.
	maxMirrored = 8
	mirrorTime  = 2 * time.Minute // maximum duration of a mirrored request
	// maxRedirects is the maximum number of promoted releases that a request follows.
	maxRedirects = 4
)

// promoted returns the target to which the promoted release of a deployment redirects requests that
// name no addon. It returns the target itself if there is none, or the candidate is not live. The
// Via of the result has the deployments whose releases it has followed.
func promoted(v *projections.View, target Target) Target {
	for range maxRedirects {
		t := target.State.Release
		if t == nil || t.State != domain.ReleasePromotedState || target.Choose == nil {
			break
		}
		row, ok := v.Deployments.Get(t.To())
		if !ok || !row.State.Live() {
			break
		}
		target = Target{Row: row, Addon: addonOfDeployment(v, row), Choose: addonOfDeployment,
			Via: append(target.Via, target.Name)}
	}
	return target
}

// A splitRequest is a request to a deployment with a running release.
type splitRequest struct {
	router    *Router
	call      *request.Call
	split     *domain.TrafficSplit
	step      live.ReleaseStep
	stable    Target
	candidate Target
	session   string
	req       engines.CompletionRequest
	answered  bool // the stable deployment has answered the request
	left      bool // the client has disconnected before it had the answer of the stable deployment
}

// generateSplit is Generate for a deployment that may have a running release. A request that fails
// on the candidate before the client has received a part of the response is sent to the stable
// deployment.
func (r *Router) generateSplit(ctx context.Context, c *request.Call, target Target, session string,
	req engines.CompletionRequest, out Output) (usage engines.Usage, placement Placement, err error) {
	t := target.State.Release
	if !t.Splits() || target.Choose == nil || out.Unsplit || out.Secondary && t.Mode == domain.ReleaseShadow {
		return r.generateOn(ctx, c, target, session, req, out, 0)
	}
	s := &splitRequest{router: r, call: c, split: t, stable: target, session: session, req: req,
		step: stepOf(target.Row)}
	selected := s.selected()
	why := ""
	if selected {
		s.candidate, why = s.findCandidate()
	}
	switch {
	case !selected || t.Mode == domain.ReleaseShadow && why != "":
		return s.onStable(ctx, out, "", !out.Secondary)
	case t.Mode == domain.ReleaseShadow:
		defer s.mirror()()
		return s.onStable(ctx, out, "", true)
	case why != "":
		return s.onStable(ctx, out, why, false)
	}
	leave, ok := r.releases.enter(s.step)
	if !ok {
		return s.onStable(ctx, out, candidateLimit, false)
	}
	defer leave()
	return s.onCandidate(ctx, out)
}

// candidateLimit is why a selected request went to the stable deployment, although the candidate
// may be good: too many requests are in progress on the candidate, or waiting for it.
const candidateLimit = "limit of the candidate"

// selected reports whether the candidate gets the request or a copy of it. A request that is
// selected at a percentage is also selected at every higher percentage of the same release.
func (s *splitRequest) selected() bool {
	key := s.call.ID
	if s.split.Selection == domain.SelectKeys {
		key = cmp.Or(s.session, string(s.call.Principal.Key), s.call.ID)
	}
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s\x00%d\x00%d\x00%s", s.step.Deployment, s.step.Created, s.step.Number, key) // never fails
	return mix(h.Sum64())%100 < uint64(s.split.Percent())
}

// findCandidate returns the candidate, or why it cannot answer.
func (s *splitRequest) findCandidate() (Target, string) {
	v := s.call.World.View()
	row, ok := v.Deployments.Get(s.split.To())
	switch {
	case !ok || !row.State.Live():
		return Target{}, "candidate is not live"
	case s.router.releases.isStopped(s.step):
		return Target{}, "candidate broke a rule"
	}
	target := Target{Row: row, Addon: addonOfDeployment(v, row), Choose: addonOfDeployment}
	found, err := newSendState(s.call, Request{Deployment: row.Name, Addon: target.Addon}, s.router).readyReplicas(v)
	if err == nil && found.usable() {
		return target, ""
	}
	if row.State.DesiredReplicas == 0 && row.State.MaxWithRevocable() > 0 {
		_ = s.call.Record(domain.Intend(domain.Deployments, row.Name, // the next request tries again
			domain.Command[domain.Deployment](domain.WakeDeployment{})))
	}
	return Target{}, "candidate has no ready replica"
}

// callCandidate returns a call for an attempt on the candidate, which has its own Admission: the
// stable deployment may still admit a request that the admission queue of the candidate has
// refused.
func (s *splitRequest) callCandidate(ctx context.Context, id string, background bool) *request.Call {
	c := s.call
	return &request.Call{Core: c.Core, Operation: c.Operation, Writer: discardedHeaders(), Request: c.Request, Ctx: ctx,
		ID: id, Trace: c.Trace, Time: c.Time, Account: c.Account, Principal: c.Principal, Background: background}
}

// onStable sends the request to the stable deployment. why is why the candidate does not get it
// although it is selected. If counted is true, the request is a sample of the stable deployment.
func (s *splitRequest) onStable(ctx context.Context, out Output, why string, counted bool) (usage engines.Usage,
	placement Placement, err error) {
	arm := "stable"
	if why != "" {
		arm += "; release-reason=" + why
	}
	m := s.measure(&out, s.stable.Name, arm)
	usage, placement, err = s.router.generateOn(ctx, s.call, s.stable, s.session, s.req, m.out, 0)
	s.answered, s.left = err == nil, err != nil && m.left(ctx)
	if counted && (err == nil || s.call.Closing.Err() == nil && (s.left || isFault(err))) {
		s.record(false, m.sample(usage, err, s.left))
	}
	return usage, m.placed(placement), err
}

// onCandidate sends the request to the candidate, and to the stable deployment if that fails before
// the client has received a part of the response.
func (s *splitRequest) onCandidate(ctx context.Context, out Output) (engines.Usage, Placement, error) {
	req := s.req
	req.Addon = s.candidate.Addon
	m := s.measure(&out, s.candidate.Name, "candidate")
	limited, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(candidateFirstToken, cancel)
	m.begun = func() { timer.Stop() }
	usage, placement, err := s.router.generateOn(limited, s.callCandidate(limited, s.call.ID, s.call.Background),
		s.candidate, s.session, req, m.out, candidateQueueWait)
	timer.Stop()
	late := limited.Err() != nil && ctx.Err() == nil
	cancel()
	left := err != nil && m.left(ctx)
	sample := m.sample(usage, err, left)
	if out.Secondary {
		sample = domain.ArmSamples{}
	}
	why := "candidate failed"
	switch {
	case err == nil || left && s.call.Closing.Err() == nil:
		s.record(true, sample)
		return usage, m.placed(placement), err
	case left || s.call.Closing.Err() != nil:
		return usage, m.placed(placement), err // says nothing about the candidate
	case !m.first.IsZero() && out.Restart == nil:
		s.record(true, sample)
		return usage, m.placed(placement), err
	case !m.first.IsZero():
		out.Restart()
	case m.refused(err):
		sample, why = domain.ArmSamples{}, candidateLimit
	}
	if why != candidateLimit {
		s.call.Logger.Warn("a request failed on the candidate of a release; it is sent to the stable deployment",
			"request", s.call.ID, "deployment", s.stable.Name, "candidate", s.candidate.Name, "error", err)
	}
	fault := late || isFault(err)
	if fault {
		s.record(true, sample)
	}
	stableUsage, stablePlacement, stableErr := s.onStable(ctx, out, why, false)
	if stableErr == nil && !fault { // the request is valid, and the candidate has rejected it
		s.record(true, sample)
	}
	return stableUsage, stablePlacement, stableErr
}

// record counts a sample of the candidate or of the stable deployment, if it has a request.
func (s *splitRequest) record(candidate bool, sample domain.ArmSamples) {
	if sample.Requests > 0 {
		s.router.releases.record(s.call, s.split, s.step, candidate, sample)
	}
}

// isFault reports whether an error is a fault of the deployment that got the request.
func isFault(err error) bool {
	switch domain.CodeOf(err) {
	case domain.Internal, domain.Unknown, domain.Unavailable, domain.DeadlineExceeded, domain.Aborted,
		domain.ResourceExhausted:
		return true
	}
	return false
}

// mirror also sends the request to the candidate, and discards the answer. Nobody waits for it. The
// caller must call end when the stable deployment has ended the request: a candidate that rejects a
// request is at fault only if the stable deployment answers it, and if the client leaves, the
// mirrored request ends too, so that both deployments get the same time for the request.
func (s *splitRequest) mirror() (end func()) {
	c := s.call
	leave, ok := c.Busy.Enter("copies of "+string(s.stable.Name), maxMirrored)
	if !ok || len(s.req.Images) > 0 || c.Closing.Err() != nil { // images are deleted when the request ends
		if ok {
			leave()
		}
		return func() {}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Ctx), mirrorTime)
	ended := make(chan struct{})
	go func() {
		defer cancel()
		defer context.AfterFunc(c.Closing, cancel)()
		defer func() {
			if cause := recover(); cause != nil {
				c.Logger.Error("panic in a mirrored request of a release", "request", c.ID, "cause", fmt.Sprint(cause))
			}
		}()
		sample, rejected := s.runMirrored(ctx, leave)
		if rejected {
			<-ended
		}
		if c.Closing.Err() == nil && (!rejected || s.answered) {
			s.record(true, sample)
		}
	}()
	return func() {
		if s.left {
			cancel()
		}
		close(ended)
	}
}

// runMirrored sends the request to the candidate, calls leave when it has ended, and records its
// usage. rejected states that the candidate has rejected the request, which may be invalid.
func (s *splitRequest) runMirrored(ctx context.Context, leave func()) (sample domain.ArmSamples, rejected bool) {
	defer leave()
	c := s.callCandidate(ctx, s.call.ID+"-copy", true)
	req := s.req
	req.Addon = s.candidate.Addon
	out := Output{Emit: func(engines.Chunk) error { return nil }, Restart: func() {}}
	m := s.measure(&out, s.candidate.Name, "candidate")
	usage, _, err := s.router.generateOn(ctx, c, s.candidate, s.session, req, m.out, candidateQueueWait)
	s.router.RecordUsage(c, s.candidate.Name, string(s.candidate.Name), metering.Record{Kind: metering.Shadow,
		Complete: err == nil, PromptTokens: usage.PromptTokens, CachedPromptTokens: usage.CachedTokens,
		CompletionTokens: usage.CompletionTokens})
	late := errors.Is(ctx.Err(), context.DeadlineExceeded)
	cutOff := err != nil && ctx.Err() != nil && (!late || !m.first.IsZero()) // late without a first token is an error
	return m.sample(usage, err, cutOff), err != nil && ctx.Err() == nil && !isFault(err)
}

// A measurement measures an attempt to answer a request.
type measurement struct {
	out       Output // passes on what it gets
	begin     time.Time
	first     time.Time // when the response began; zero if it did not
	tokens    int       // number of tokens so far, for attempts that are cut off
	sent      bool      // a replica got the request
	abandoned bool      // the client has disconnected
	begun     func()    // is called when the response begins; may be nil
	name      domain.Name
	arm       string
}

// measure returns a measurement of an attempt on a deployment, whose output goes to out.
func (s *splitRequest) measure(out *Output, name domain.Name, arm string) *measurement {
	m := &measurement{out: *out, begin: time.Now(), name: name,
		arm: fmt.Sprintf("; release=%d; arm=%s", s.split.Number, arm)}
	m.out.Emit = func(chunk engines.Chunk) error {
		if m.first.IsZero() {
			if m.first = time.Now(); m.begun != nil {
				m.begun()
			}
		}
		if !chunk.Echoed && chunk.Prompt == nil {
			m.tokens += max(1, len(chunk.Tokens)) // not every engine reports token IDs
		}
		err := out.Emit(chunk)
		m.abandoned = m.abandoned || err != nil
		return err
	}
	if out.Restart != nil {
		m.out.Restart = func() {
			m.tokens = 0
			out.Restart()
		}
	}
	m.out.Routed = func(at Placement) {
		if m.sent = true; out.Routed != nil {
			out.Routed(m.placed(at))
		}
	}
	return m
}

// placed returns a placement with the deployment and the release.
func (m *measurement) placed(at Placement) Placement {
	at.Deployment, at.Route = m.name, at.Route+m.arm
	return at
}

// left reports whether the client has disconnected. ctx is the context of the client's request.
func (m *measurement) left(ctx context.Context) bool { return ctx.Err() != nil || m.abandoned }

// refused reports whether no replica of the candidate got the request, or the admission queue of
// the deployment has refused it.
func (m *measurement) refused(err error) bool {
	return err != nil && (request.ReasonOf(err) == ReasonOverloaded || !m.sent)
}

// sample returns the sample of an attempt that has ended now. It has no request if the attempt says
// nothing about the deployment. cutOff states that the attempt was ended early, for example because
// the client has disconnected. Then the times so far count, which are lower bounds: a deployment
// that does not answer is found even if no client waits for it.
func (m *measurement) sample(usage engines.Usage, err error, cutOff bool) domain.ArmSamples {
	one, now := domain.ArmSamples{Requests: 1}, time.Now()
	switch {
	case cutOff && m.first.IsZero():
		one.FirstToken.Add(now.Sub(m.begin))
		return one
	case cutOff:
		usage.CompletionTokens = max(2, m.tokens)
	case m.refused(err):
		return domain.ArmSamples{}
	case err != nil:
		one.Errors = 1
		return one
	case m.first.IsZero():
		return one
	}
	one.FirstToken.Add(m.first.Sub(m.begin))
	if n := usage.CompletionTokens; n > 1 {
		one.PerToken.Add(now.Sub(m.first) / time.Duration(n-1))
	}
	return one
}
