package domain

import (
	"slices"
	"strconv"
	"time"
)

// A release moves the traffic of a deployment, the stable deployment, to another deployment of its account,
// the candidate. In steps, a growing share of the requests goes to the candidate (CANARY), or is
// mirrored to it (SHADOW). TrafficSplit.Evaluate compares the two deployments.
//
//	(none), ROLLED_BACK       --StartRelease-->    RUNNING
//	RUNNING                   --AdvanceRelease-->  RUNNING, in the next step; or WAITING, after the
//	                                               last step of a release with promotion MANUAL
//	RUNNING, WAITING          --PromoteRelease-->  PROMOTED: the candidate gets all requests
//	RUNNING, WAITING, PROMOTED --RollBackRelease--> ROLLED_BACK: the candidate gets none
//
// A release changes neither the state nor the replicas of the two deployments.

// States of a release.
const (
	ReleaseRunning         = "RUNNING"
	ReleaseWaiting         = "WAITING"
	ReleasePromotedState   = "PROMOTED"
	ReleaseRolledBackState = "ROLLED_BACK"
)

// Modes of a release.
const (
	ReleaseCanary = "CANARY" // the candidate answers its share of the requests
	ReleaseShadow = "SHADOW" // its share of the requests is mirrored to the candidate, whose answers are discarded
)

// Selections of the requests for the candidate.
const (
	SelectRequests = "REQUEST" // each request on its own
	SelectKeys     = "KEY"     // all requests of a session or, without one, of an API key
)

// How a release that has passed its last step is promoted.
const (
	PromoteAutomatic = "AUTOMATIC"
	PromoteManual    = "MANUAL"
)

// Limits of releases.
const (
	MaxReleaseSteps     = 20
	MinReleaseSamples   = 10
	MaxReleaseSamples   = 100_000
	MinReleaseStepTime  = time.Minute
	MaxReleaseStepTime  = 30 * 24 * time.Hour
	MaxLatencyPercent   = 1000
	defaultStepDuration = "86400s"
)

// ReleaseSpec has the settings of a release. Its zero values stand for the defaults.
type ReleaseSpec struct {
	Candidate string `json:"candidate"`           // name of the candidate
	Mode      string `json:"mode,omitempty"`      // CANARY (default) or SHADOW
	Selection string `json:"selection,omitempty"` // REQUEST (default) or KEY
	Steps     []int  `json:"steps,omitempty"`     // percent of the requests in each step; default 1, 5, 25, 50
	Promotion string `json:"promotion,omitempty"` // AUTOMATIC (default) or MANUAL
	// MaxErrorIncreasePercent is the maximum of the candidate's error rate minus that of the
	// stable deployment, in percentage points; default 1.
	MaxErrorIncreasePercent *int `json:"maxErrorIncreasePercent,omitempty"`
	// MaxLatencyPercent is the maximum latency of the candidate, in percent of that of the
	// stable deployment; default 125.
	MaxLatencyPercent *int `json:"maxLatencyPercent,omitempty"`
	// MinSamples is the minimum number of requests to each of the deployments in a step; default 50.
	MinSamples *int `json:"minSamples,omitempty"`
	// MaxStepDuration is how long a step may take, such as 3600s; default 86400s.
	MaxStepDuration string `json:"maxStepDuration,omitempty"`
}

func orDefault[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

func orNumber(value *int, otherwise int) *int {
	if value == nil {
		return &otherwise
	}
	return value
}

// WithDefaults returns the spec with its defaults.
func (s ReleaseSpec) WithDefaults() ReleaseSpec {
	s.Mode, s.Selection = orDefault(s.Mode, ReleaseCanary), orDefault(s.Selection, SelectRequests)
	s.Promotion = orDefault(s.Promotion, PromoteAutomatic)
	if len(s.Steps) == 0 {
		s.Steps = []int{1, 5, 25, 50}
	}
	s.MaxErrorIncreasePercent = orNumber(s.MaxErrorIncreasePercent, 1)
	s.MaxLatencyPercent, s.MinSamples = orNumber(s.MaxLatencyPercent, 125), orNumber(s.MinSamples, 50)
	s.MaxStepDuration = orDefault(s.MaxStepDuration, defaultStepDuration)
	return s
}

// Check adds the violations of the spec to v.
func (s ReleaseSpec) Check(v *Violations) {
	_, ok := ParseName(s.Candidate, Deployments.Collection)
	v.Require(ok, "candidate", "must be the resource name of a deployment, like accounts/ACCOUNT/deployments/ID")
	oneOf := func(field, value string, allowed ...string) {
		v.Require(value == "" || slices.Contains(allowed, value), field, "must be %s", join(allowed))
	}
	oneOf("mode", s.Mode, ReleaseCanary, ReleaseShadow)
	oneOf("selection", s.Selection, SelectRequests, SelectKeys)
	oneOf("promotion", s.Promotion, PromoteAutomatic, PromoteManual)
	v.Require(len(s.Steps) <= MaxReleaseSteps, "steps", "must have at most %d steps, not %d", MaxReleaseSteps,
		len(s.Steps))
	before := 0
	for i, percent := range s.Steps {
		v.Require(percent > before && percent < 100, indexed("steps", i),
			"must be a percentage from 1 to 99 that is higher than that of the step before, not %d", percent)
		before = percent
	}
	between := func(field string, value *int, low, high int) {
		v.Require(value == nil || *value >= low && *value <= high, field, "must be from %d to %d", low, high)
	}
	between("maxErrorIncreasePercent", s.MaxErrorIncreasePercent, 0, 100)
	between("maxLatencyPercent", s.MaxLatencyPercent, 100, MaxLatencyPercent)
	between("minSamples", s.MinSamples, MinReleaseSamples, MaxReleaseSamples)
	if s.MaxStepDuration != "" {
		d, err := time.ParseDuration(s.MaxStepDuration)
		v.Require(err == nil && d >= MinReleaseStepTime && d <= MaxReleaseStepTime, "maxStepDuration",
			"must be a duration from %.0fs to %.0fs, such as %s", MinReleaseStepTime.Seconds(),
			MaxReleaseStepTime.Seconds(), defaultStepDuration)
	}
}

// A TrafficSplit is the newest release of a deployment.
type TrafficSplit struct {
	ReleaseSpec
	Number    int       `json:"number"` // number of the release of this deployment, from 1
	CreatedBy string    `json:"createdBy"`
	State     string    `json:"state"`
	Step      int       `json:"step"`    // index of the current step; len(Steps) when WAITING
	Reason    string    `json:"reason"`  // why the release has its state and step
	Started   time.Time `json:"started"` // when the release was started
	Since     time.Time `json:"since"`   // when the state or step last changed
	// what both deployments did in the last step that has ended
	Figures ReleaseFigures `json:"figures"`
}

// Splits reports whether requests of the deployment may go to the candidate of a running release.
func (t *TrafficSplit) Splits() bool {
	return t != nil && (t.State == ReleaseRunning || t.State == ReleaseWaiting)
}

// Active reports whether the candidate may get requests: the release is neither finished nor rolled
// back, or it is promoted.
func (t *TrafficSplit) Active() bool {
	return t.Splits() || t != nil && t.State == ReleasePromotedState
}

// Percent returns how many percent of the requests go to the candidate, or are mirrored to it.
func (t *TrafficSplit) Percent() int {
	switch {
	case t.Splits():
		return t.Steps[min(t.Step, len(t.Steps)-1)]
	case t.Active():
		return 100
	}
	return 0
}

// To returns the name of the candidate.
func (t *TrafficSplit) To() Name { return Name(t.Candidate) }

func (t *TrafficSplit) stepDuration() time.Duration {
	d, _ := time.ParseDuration(t.MaxStepDuration) // was checked
	return d
}

type ReleaseStarted struct {
	ReleaseSpec
	Number    int       `json:"number"`
	CreatedBy string    `json:"createdBy"`
	Time      time.Time `json:"time"`
}

func (e ReleaseStarted) Evolve(d *Deployment) {
	d.Release = &TrafficSplit{ReleaseSpec: e.ReleaseSpec, Number: e.Number, CreatedBy: e.CreatedBy,
		State: ReleaseRunning, Reason: "started by its user", Started: e.Time, Since: e.Time}
}

// ReleaseFigures is what both deployments did in the step that has ended.
type ReleaseFigures struct {
	Stable    ArmFigures `json:"stable"`
	Candidate ArmFigures `json:"candidate"`
}

type ReleaseAdvanced struct {
	ReleaseFigures
	Number int       `json:"number"`
	Step   int       `json:"step"` // index of the step that begins
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

func (e ReleaseAdvanced) Evolve(d *Deployment) {
	d.changeRelease(e.ReleaseFigures, e.Reason, e.Time, func(t *TrafficSplit) {
		if t.Step = e.Step; e.Step >= len(t.Steps) {
			t.State = ReleaseWaiting
		}
	})
}

type ReleasePromoted struct {
	ReleaseFigures
	Number int       `json:"number"`
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

func (e ReleasePromoted) Evolve(d *Deployment) {
	d.changeRelease(e.ReleaseFigures, e.Reason, e.Time, func(t *TrafficSplit) { t.State = ReleasePromotedState })
}

type ReleaseRolledBack struct {
	ReleaseFigures
	Number int       `json:"number"`
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

func (e ReleaseRolledBack) Evolve(d *Deployment) {
	d.changeRelease(e.ReleaseFigures, e.Reason, e.Time, func(t *TrafficSplit) { t.State = ReleaseRolledBackState })
}

func (d *Deployment) changeRelease(figures ReleaseFigures, reason string, now time.Time, change func(*TrafficSplit)) {
	if d.Release == nil {
		return
	}
	next := *d.Release
	next.Figures, next.Reason, next.Since = figures, reason, now
	change(&next)
	d.Release = &next
}

// StartRelease starts a release of a deployment to a candidate.
type StartRelease struct {
	ReleaseSpec
	CreatedBy string
}

// Decide implements Command.
func (c StartRelease) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	if err := d.mustLive(); err != nil {
		return nil, err
	}
	var v Violations
	c.Check(&v)
	v.Require(d.SpeechFormat == "", "candidate", "cannot get requests of a deployment of a speech model: releases "+
		"compare answers in text")
	if err := v.Err(); err != nil {
		return nil, err
	}
	spec, number := c.WithDefaults(), 1
	if t := d.Release; t != nil {
		number = t.Number + 1
		switch {
		case t.Splits() && sameJSON(t.ReleaseSpec, spec):
			return nil, nil
		case t.Splits():
			return nil, precondition("RELEASE_RUNNING", "release %d to %s is %s: promote it or roll it back first", t.Number,
				t.Candidate, t.State)
		case t.State == ReleasePromotedState:
			return nil, precondition("RELEASE_PROMOTED", "release %d has moved all requests to %s: start the release on that "+
				"deployment, or roll this one back first", t.Number, t.Candidate)
		}
	}
	return ReleaseStarted{spec, number, c.CreatedBy, now}, nil
}

// release returns the newest release if its number is number; 0 stands for the newest.
func (d Deployment) release(number int) (*TrafficSplit, error) {
	switch {
	case !d.Exists():
		return nil, notFound("deployment")
	case d.Release == nil:
		return nil, precondition("NO_RELEASE", "the deployment has no release: start one first")
	case number != 0 && number != d.Release.Number:
		return nil, precondition("STALE_RELEASE", "release %d was replaced by release %d", number, d.Release.Number)
	}
	return d.Release, nil
}

// AdvanceRelease ends the step with the index Step, because the candidate has passed it. The next
// step begins or, after the last one, the release waits for its promotion.
type AdvanceRelease struct {
	ReleaseFigures
	Number int
	Step   int
	Reason string
}

// Decide implements Command.
func (c AdvanceRelease) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	switch t, err := d.release(c.Number); {
	case err != nil:
		return nil, err
	case t.State != ReleaseRunning && t.State != ReleaseWaiting:
		return nil, precondition("RELEASE_STATE", "release %d is %s", t.Number, t.State)
	case t.Step == c.Step+1:
		return nil, nil
	case t.Step != c.Step || t.State != ReleaseRunning:
		return nil, precondition("STALE_RELEASE", "step %d of the release has ended: step %d has begun", c.Step+1, t.Step+1)
	default:
		return ReleaseAdvanced{c.ReleaseFigures, t.Number, c.Step + 1, c.Reason, now}, nil
	}
}

// PromoteRelease sends all requests of the deployment to the candidate. Number is the number of the
// release; 0 stands for the newest.
type PromoteRelease struct {
	ReleaseFigures
	Number int
	Reason string
}

// Decide implements Command.
func (c PromoteRelease) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	switch t, err := d.release(c.Number); {
	case err != nil:
		return nil, err
	case t.State == ReleasePromotedState:
		return nil, nil
	case !t.Splits():
		return nil, precondition("RELEASE_STATE", "release %d is %s: start another release", t.Number, t.State)
	default:
		return ReleasePromoted{c.ReleaseFigures, t.Number, c.Reason, now}, d.mustLive()
	}
}

// RollBackRelease sends all requests of the deployment to its own replicas again. Number is the
// number of the release; 0 stands for the newest.
type RollBackRelease struct {
	ReleaseFigures
	Number int
	Reason string
}

// Decide implements Command.
func (c RollBackRelease) Decide(d Deployment, now time.Time) (Event[Deployment], error) {
	switch t, err := d.release(c.Number); {
	case err != nil:
		return nil, err
	case t.State == ReleaseRolledBackState:
		return nil, nil
	default:
		return ReleaseRolledBack{c.ReleaseFigures, t.Number, c.Reason, now}, nil
	}
}

// stepText returns the number and the percentage of the current step, for messages.
func (t *TrafficSplit) stepText() string {
	if t.State == ReleaseWaiting {
		return "while the release waited for its promotion, at " + strconv.Itoa(t.Percent()) + " %"
	}
	return "in step " + strconv.Itoa(t.Step+1) + ", at " + strconv.Itoa(t.Percent()) + " %"
}
