package routing

import (
	"cmp"
	"context"
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
	// candidateFirstToken is how long the candidate may take to begin a response. Then the deployment
	// gets the request.
	candidateFirstToken = 30 * time.Second
	// minInFlight is the number of requests to a candidate that may be in progress on this gateway
	// before any has ended. Later, as many may be in progress as have ended in the step, so that a bad
	// candidate gets few requests however high the load is.
	minInFlight = 8
	// maxShadows is the maximum number of copies of requests to a deployment that are in progress.
	// Further requests are not copied.
	maxShadows = 8
	shadowTime = 2 * time.Minute // maximum duration of a copy
	// maxRedirects is the maximum number of promoted releases that a request follows.
	maxRedirects = 4
)

// promoted returns the target to which the promoted release of a deployment redirects requests that
// name no addon. It returns the target itself if there is none, or the candidate is not live.
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
		target = Target{row, addonOfDeployment(v, row), addonOfDeployment}
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
}

// generateSplit is Generate for a deployment that may have a running release. A request that fails on
// the candidate before the client has received a part of the response is sent to the deployment.
func (r *Router) generateSplit(ctx context.Context, c *request.Call, target Target, session string,
	req engines.CompletionRequest, out Output) (usage engines.Usage, placement Placement, err error) {
	t := target.State.Release
	if !t.Splits() || target.Choose == nil || out.Secondary && t.Mode == domain.ReleaseShadow {
		return r.generateOn(ctx, c, target, session, req, out)
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
		s.copy()
		return s.onStable(ctx, out, "", true)
	case why != "":
		return s.onStable(ctx, out, why, false)
	}
	leave, ok := r.releases.enter(s.step)
	if !ok {
		return s.onStable(ctx, out, "limit of the candidate", false)
	}
	defer leave()
	return s.onCandidate(ctx, out)
}

// selected reports whether the candidate gets the request or a copy of it. A request that is selected
// at a percentage is also selected at every higher percentage of the same release.
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
	ready := 0
	for _, replica := range v.Alive(&row.State) {
		if replica.State == domain.ReplicaReady {
			ready++
		}
	}
	if ready == 0 {
		if row.State.DesiredReplicas == 0 && row.State.MaxWithRevocable() > 0 {
			_ = s.call.Record(domain.Intend(domain.Deployments, row.Name, // the next request tries again
				domain.Command[domain.Deployment](domain.WakeDeployment{})))
		}
		return Target{}, "candidate has no ready replica"
	}
	return Target{row, addonOfDeployment(v, row), addonOfDeployment}, ""
}

// onStable sends the request to the deployment. why is why the candidate does not get it although it
// is selected. If counted is true, the request is a sample of the deployment.
func (s *splitRequest) onStable(ctx context.Context, out Output, why string, counted bool) (usage engines.Usage,
	placement Placement, err error) {
	arm := "stable"
	if why != "" {
		arm += "; release-reason=" + why
	}
	m := s.measure(&out, s.stable.Name, arm)
	usage, placement, err = s.router.generateOn(ctx, s.call, s.stable, s.session, s.req, m.out)
	if counted && !m.abandoned && ctx.Err() == nil && (err == nil || isFault(err)) {
		s.router.releases.record(s.call, s.split, s.step, false, m.sample(usage, err))
	}
	return usage, m.placed(placement), err
}

// onCandidate sends the request to the candidate, and to the deployment if that fails before the
// client has received a part of the response.
func (s *splitRequest) onCandidate(ctx context.Context, out Output) (engines.Usage, Placement, error) {
	req := s.req
	req.Addon = s.candidate.Addon
	m := s.measure(&out, s.candidate.Name, "candidate")
	limited, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(candidateFirstToken, cancel)
	m.begun = func() { timer.Stop() }
	usage, placement, err := s.router.generateOn(limited, s.call, s.candidate, s.session, req, m.out)
	timer.Stop()
	cancel()
	count := func() {
		if !out.Secondary {
			s.router.releases.record(s.call, s.split, s.step, true, m.sample(usage, err))
		}
	}
	switch {
	case err == nil:
		count()
		return usage, m.placed(placement), nil
	case ctx.Err() != nil || m.abandoned || s.call.Closing.Err() != nil:
		return usage, m.placed(placement), err // says nothing about the candidate
	case !m.first.IsZero() && out.Restart == nil:
		count()
		return usage, m.placed(placement), err
	case !m.first.IsZero():
		out.Restart()
	}
	s.call.Logger.Warn("a request failed on the candidate of a release; it is sent to the deployment", "request",
		s.call.ID, "deployment", s.stable.Name, "candidate", s.candidate.Name, "error", err)
	stableUsage, stablePlacement, stableErr := s.onStable(ctx, out, "candidate failed", false)
	if stableErr == nil || isFault(err) && ctx.Err() == nil {
		count()
	}
	return stableUsage, stablePlacement, stableErr
}

// isFault reports whether an error is a fault of the deployment, not of the request.
func isFault(err error) bool {
	switch domain.CodeOf(err) {
	case domain.Internal, domain.Unknown, domain.Unavailable, domain.DeadlineExceeded, domain.Aborted,
		domain.ResourceExhausted:
		return true
	}
	return false
}

// copy sends a copy of the request to the candidate, and discards the answer. Nobody waits for it.
func (s *splitRequest) copy() {
	c := s.call
	leave, ok := c.Busy.Enter("copies of "+string(s.stable.Name), maxShadows)
	if !ok || len(s.req.Images) > 0 || c.Closing.Err() != nil { // images are deleted when the request ends
		if ok {
			leave()
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Ctx), shadowTime)
	stop := context.AfterFunc(c.Closing, cancel)
	shadow := &request.Call{Core: c.Core, Operation: c.Operation, Writer: discardedHeaders(), Request: c.Request, Ctx: ctx,
		ID: c.ID + "-copy", Trace: c.Trace, Time: c.Time, Account: c.Account, Principal: c.Principal, Background: true}
	req := s.req
	req.Addon = s.candidate.Addon
	go func() {
		defer leave()
		defer cancel()
		defer stop()
		defer func() {
			if cause := recover(); cause != nil {
				c.Logger.Error("panic in the copy of a request for a release", "request", shadow.ID, "cause", fmt.Sprint(cause))
			}
		}()
		out := Output{Emit: func(engines.Chunk) error { return nil }, Restart: func() {}}
		m := s.measure(&out, s.candidate.Name, "candidate")
		usage, _, err := s.router.generateOn(ctx, shadow, s.candidate, s.session, req, m.out)
		s.router.RecordUsage(shadow, s.candidate.Name, string(s.candidate.Name), metering.Record{Kind: metering.Shadow,
			Complete: err == nil, PromptTokens: usage.PromptTokens, CachedPromptTokens: usage.CachedTokens,
			CompletionTokens: usage.CompletionTokens})
		if c.Closing.Err() == nil && (err == nil || isFault(err) || ctx.Err() != nil) {
			s.router.releases.record(shadow, s.split, s.step, true, m.sample(usage, err))
		}
	}()
}

// A measurement measures an attempt to answer a request.
type measurement struct {
	out       Output // passes on what it gets
	begin     time.Time
	first     time.Time // when the response began; zero if it did not
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
		err := out.Emit(chunk)
		m.abandoned = m.abandoned || err != nil
		return err
	}
	if out.Routed != nil {
		m.out.Routed = func(at Placement) { out.Routed(m.placed(at)) }
	}
	return m
}

// placed returns a placement with the deployment and the release.
func (m *measurement) placed(at Placement) Placement {
	at.Deployment, at.Route = m.name, at.Route+m.arm
	return at
}

// sample returns the sample of an attempt that has ended now.
func (m *measurement) sample(usage engines.Usage, err error) domain.ArmSamples {
	one := domain.ArmSamples{Requests: 1}
	switch {
	case err != nil:
		one.Errors = 1
		return one
	case m.first.IsZero():
		return one
	}
	one.FirstToken.Add(m.first.Sub(m.begin))
	if n := usage.CompletionTokens; n > 1 {
		one.PerToken.Add(time.Since(m.first) / time.Duration(n-1))
	}
	return one
}
