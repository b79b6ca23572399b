package rest

import (
	"cmp"
	"reflect"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/live"
)

// TrafficSplit is the wire type of the newest release of a deployment.
type TrafficSplit struct {
	Number int `json:"number"`
	domain.ReleaseSpec
	State     string       `json:"state"`
	Step      int          `json:"step"`
	Percent   int          `json:"percent"`
	Reason    string       `json:"reason"`
	CreatedBy string       `json:"createdBy,omitempty"`
	StartTime *time.Time   `json:"startTime,omitempty"`
	StepTime  *time.Time   `json:"stepTime,omitempty"`
	Figures   SplitFigures `json:"figures"`
}

// SplitFigures has what the stable deployment and the candidate did in a step of a release.
type SplitFigures struct {
	Stable    RequestFigures `json:"stable"`
	Candidate RequestFigures `json:"candidate"`
}

// RequestFigures has the numbers of requests to a deployment, and its latencies in seconds.
type RequestFigures struct {
	Requests      int64   `json:"requests"`
	Errors        int64   `json:"errors"`
	FirstTokenP50 float64 `json:"firstTokenP50"`
	FirstTokenP90 float64 `json:"firstTokenP90"`
	PerTokenP50   float64 `json:"perTokenP50"`
	PerTokenP90   float64 `json:"perTokenP90"`
}

func figuresOf(f domain.ArmFigures) RequestFigures {
	seconds := func(micros int64) float64 { return float64(micros) / 1e6 }
	return RequestFigures{f.Requests, f.Errors, seconds(f.FirstTokenP50), seconds(f.FirstTokenP90), seconds(f.PerTokenP50),
		seconds(f.PerTokenP90)}
}

// renderSplit returns the newest release of a deployment; nil if there was none. While it is running,
// the figures are those of the current step, as far as this server knows them. v may be nil.
func renderSplit(v *projections.View, row *projections.Row[domain.Deployment]) *TrafficSplit {
	t := row.State.Release
	if t == nil {
		return nil
	}
	out := &TrafficSplit{Number: t.Number, ReleaseSpec: t.ReleaseSpec, State: t.State,
		Step: min(t.Step+1, len(t.Steps)), Percent: t.Percent(), Reason: t.Reason, CreatedBy: creatorOf(v, t.CreatedBy),
		StartTime: wire.TimestampOf(&t.Started), StepTime: wire.TimestampOf(&t.Since)}
	figures := t.Figures
	if v != nil && t.Splits() {
		figures = liveFigures(v, row)
	}
	out.Figures = SplitFigures{figuresOf(figures.Stable), figuresOf(figures.Candidate)}
	return out
}

// liveFigures returns the figures of the current step of the newest release of a deployment.
func liveFigures(v *projections.View, row *projections.Row[domain.Deployment]) domain.ReleaseFigures {
	t := row.State.Release
	if t == nil {
		return domain.ReleaseFigures{}
	}
	return v.Live.Release(live.ReleaseStep{Deployment: row.Name, Created: row.CreateVersion, Number: t.Number,
		Step: t.Step}).Figures()
}

// hasRelease reports whether a deployment has a release, whose createdBy depends on an API key, and whose
// figures depend on live status while it is running.
func hasRelease(row *projections.Row[domain.Deployment]) bool { return row.State.Release != nil }

// releaseReason is the request body of promoteRelease and rollBackRelease.
type releaseReason struct {
	Reason string `json:"reason,omitempty"`
}

const maxReleaseReason = 200 // characters

func releaseOperations(s *Service) []request.Operation {
	const one = request.CollectionPath + "deployments/{id}"
	return []request.Operation{
		{ID: "startRelease", Method: "POST", Path: one + ":startRelease", Tag: "deployments",
			Summary: "Start a release", Permission: request.Write,
			Description: "Moves the traffic of the deployment, the stable deployment, to another deployment of the account, " +
				"the candidate. The share of the candidate grows in steps, as long as its error rate and latencies stay within " +
				"limits. The server then promotes the candidate or rolls the release back. The field trafficSplit of the " +
				"stable deployment shows the progress.",
			Body: reflect.TypeFor[domain.ReleaseSpec](), Required: []string{"candidate"},
			Response: reflect.TypeFor[Deployment](), Handle: s.handle(startRelease)},
		{ID: "promoteRelease", Method: "POST", Path: one + ":promoteRelease", Tag: "deployments",
			Summary: "Promote a release", Permission: request.Write,
			Description: "Sends all requests that name the deployment to the candidate of its release.",
			Body:        reflect.TypeFor[releaseReason](), BodyOptional: true, Response: reflect.TypeFor[Deployment](),
			Handle: s.handle(func(c *call) (any, error) {
				return endRelease(c, "promoted by its user", func(figures domain.ReleaseFigures,
					reason string) domain.Command[domain.Deployment] {
					return domain.PromoteRelease{ReleaseFigures: figures, Reason: reason}
				})
			})},
		{ID: "rollBackRelease", Method: "POST", Path: one + ":rollBackRelease", Tag: "deployments",
			Summary: "Roll back a release", Permission: request.Write,
			Description: "Sends all requests that name the deployment to its own replicas again. A promoted release can " +
				"be rolled back, too.",
			Body: reflect.TypeFor[releaseReason](), BodyOptional: true, ReleasesResources: true,
			Response: reflect.TypeFor[Deployment](),
			Handle: s.handle(func(c *call) (any, error) {
				return endRelease(c, "rolled back by its user", func(figures domain.ReleaseFigures,
					reason string) domain.Command[domain.Deployment] {
					return domain.RollBackRelease{ReleaseFigures: figures, Reason: reason}
				})
			})},
	}
}

func startRelease(c *call) (any, error) {
	var spec domain.ReleaseSpec
	p := c.Params()
	if err := p.ReadVerb(&spec); err != nil {
		return nil, err
	}
	row, err := deployments.row(c)
	if err != nil {
		return nil, err
	}
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	requireCandidate(c, &p.Violations, row, spec.Candidate)
	intent := domain.Intend(domain.Deployments, row.Name, domain.Command[domain.Deployment](
		domain.StartRelease{ReleaseSpec: spec, CreatedBy: string(c.Principal.Key)}))
	if err := allViolations(c, intent, p, unprefixed); err != nil {
		return nil, err
	}
	warnExpiry(c, row, "requests that name it then fail, even if the candidate could serve them")
	if candidate, ok := c.View().Deployments.Get(domain.Name(spec.Candidate)); ok {
		warnExpiry(c, candidate, "which rolls the release back, even after its promotion")
	}
	return recordOnDeployment(c, intent)
}

// warnExpiry adds a warning if a deployment of a release has an expireTime. effect is what its deletion
// does to the release.
func warnExpiry(c *call, row *projections.Row[domain.Deployment], effect string) {
	if at := row.State.ExpireTime; at != nil {
		c.Warn("candidate: %s has an expireTime and is deleted at %s; %s: change its expireTime", row.Name,
			at.UTC().Format(time.RFC3339), effect)
	}
}

// embeddingModel returns the name of the model of a deployment if it is an embedding model; otherwise "".
func embeddingModel(c *call, d *domain.Deployment) domain.Name {
	row, ok := c.View().Models.Get(domain.Name(d.BaseModel))
	if !ok || !row.State.Embedding {
		return ""
	}
	return row.Name
}

// requireCandidate adds a violation if the deployment ref cannot be the candidate of a release of the
// row's deployment. It ignores a malformed ref, which the command rejects.
func requireCandidate(c *call, v *domain.Violations, row *projections.Row[domain.Deployment], ref string) {
	name, ok := domain.ParseName(ref, domain.Deployments.Collection)
	if !ok {
		return
	}
	c.requireTarget(v, "candidate", ref)
	candidate, ok := c.View().Deployments.Get(name)
	if model := embeddingModel(c, &row.State); model != "" {
		v.Add("candidate", "%s cannot get requests of %s, which serves the embedding model %s: releases compare generated "+
			"text, so change the model name in the requests instead", name, row.Name, model)
		return
	}
	switch {
	case name == row.Name:
		v.Add("candidate", "must be another deployment: create one for the new model")
	case !ok || name.Account() != c.Account:
	case !candidate.State.Live():
		v.Add("candidate", "%s is %s and serves no requests: use another deployment", name, candidate.State.State)
	case candidate.State.SpeechFormat != "":
		v.Add("candidate", "%s serves a speech model, which cannot complete prompts", name)
	case embeddingModel(c, &candidate.State) != "":
		v.Add("candidate", "%s serves the embedding model %s, which generates no text: name a deployment of a text model",
			name, candidate.State.BaseModel)
	case candidate.State.Release.Active():
		v.Add("candidate", "%s has a release of its own to %s: roll that back first, or name its candidate", name,
			candidate.State.Release.Candidate)
	}
}

func endRelease(c *call, reason string, command func(domain.ReleaseFigures, string) domain.Command[domain.Deployment]) (
	any, error) {
	var body releaseReason
	p := c.Params()
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	p.Violations.Require(len([]rune(body.Reason)) <= maxReleaseReason, "reason", "must have at most %d characters",
		maxReleaseReason)
	p.Violations.RequireText("reason", body.Reason, false)
	row, err := deployments.row(c)
	if err != nil {
		return nil, err
	}
	intent := domain.Intend(domain.Deployments, row.Name,
		command(liveFigures(c.View(), row), cmp.Or(body.Reason, reason)))
	if err := allViolations(c, intent, p, unprefixed); err != nil {
		return nil, err
	}
	return recordOnDeployment(c, intent)
}

func recordOnDeployment(c *call, intent domain.Intent) (any, error) {
	change, err := c.Do(intent)
	if err != nil {
		return nil, err
	}
	return deployments.reply(c, change)
}
