package domain

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"
)

// AutoscalingPolicy says when replicas are added and removed. Windows are
// durations such as "30s"; what is absent has the default below.
type AutoscalingPolicy struct {
	ScaleUpWindow     string             `json:"scaleUpWindow,omitempty" query:"duration"`
	ScaleDownWindow   string             `json:"scaleDownWindow,omitempty" query:"duration"`
	ScaleToZeroWindow string             `json:"scaleToZeroWindow,omitempty" query:"duration"`
	LoadTargets       map[string]float64 `json:"loadTargets,omitempty"`
}

// Defaults and limits of a policy. MinScaleToZeroWindow is what a server may
// lower.
const (
	DefaultScaleUpWindow     = 30 * time.Second
	DefaultScaleDownWindow   = 10 * time.Minute
	DefaultScaleToZeroWindow = time.Hour
	MinScaleToZeroWindow     = 5 * time.Minute
	MaxWindow                = time.Hour
	DefaultCapacityTarget    = 0.8
	maxLoadTarget            = 1e12
)

// The keys of AutoscalingPolicy.LoadTargets. CapacityTarget is the fraction of
// a replica's slots that should be busy; the others are per replica.
const (
	CapacityTarget     = "default"
	TokensTarget       = "tokens_generated_per_second"
	PromptTokensTarget = "prompt_tokens_per_second"
	RequestsTarget     = "requests_per_second"
	ConcurrentTarget   = "concurrent_requests"
)

// LoadTargets are the keys of AutoscalingPolicy.LoadTargets, in the order in
// which they are looked at.
var LoadTargets = []string{CapacityTarget, TokensTarget, PromptTokensTarget, RequestsTarget, ConcurrentTarget}

// Scaling is what load may do to a deployment's replicas.
type Scaling struct {
	Min, Max       int
	Up, Down, Zero time.Duration // windows
	Targets        map[string]float64
}

// Scaling is the spec's policy with its defaults. A policy that names targets
// has those alone; one that names none has a capacity target of 0.8.
func (s DeploymentSpec) Scaling() Scaling {
	var p AutoscalingPolicy
	if s.AutoscalingPolicy != nil {
		p = *s.AutoscalingPolicy
	}
	window := func(text string, otherwise time.Duration) time.Duration {
		if d, err := time.ParseDuration(text); err == nil {
			return d
		}
		return otherwise
	}
	targets := p.LoadTargets
	if len(targets) == 0 {
		targets = map[string]float64{CapacityTarget: DefaultCapacityTarget}
	}
	return Scaling{Min: s.MinReplicaCount, Max: s.maxReplicas(), Targets: targets, Up: window(p.ScaleUpWindow, DefaultScaleUpWindow),
		Down: window(p.ScaleDownWindow, DefaultScaleDownWindow), Zero: window(p.ScaleToZeroWindow, DefaultScaleToZeroWindow)}
}

func (p *AutoscalingPolicy) check(v *Violations) {
	if p == nil {
		return
	}
	window := func(field, text string) {
		d, err := time.ParseDuration(text)
		v.Require(text == "" || err == nil && d >= 0 && d <= MaxWindow, "autoscalingPolicy."+field, `must be a duration such as "30s", at most 3600s`)
	}
	window("scaleUpWindow", p.ScaleUpWindow)
	window("scaleDownWindow", p.ScaleDownWindow)
	window("scaleToZeroWindow", p.ScaleToZeroWindow)
	for _, key := range slices.Sorted(maps.Keys(p.LoadTargets)) {
		target := p.LoadTargets[key]
		v.Require(slices.Contains(LoadTargets, key), "autoscalingPolicy.loadTargets", "keys must be %s", join(LoadTargets))
		v.Require(target > 0 && target <= maxLoadTarget && (key != CapacityTarget || target <= 1), "autoscalingPolicy.loadTargets", "targets must be positive, and default at most 1")
	}
}

// checkFloor requires that the window before zero is no shorter than a server
// allows; 0 is MinScaleToZeroWindow.
func (p *AutoscalingPolicy) checkFloor(v *Violations, floor time.Duration) {
	if p == nil || p.ScaleToZeroWindow == "" {
		return
	}
	floor = cmp.Or(floor, MinScaleToZeroWindow)
	d, err := time.ParseDuration(p.ScaleToZeroWindow)
	v.Require(err != nil || d < 0 || d >= floor, "autoscalingPolicy.scaleToZeroWindow", "must be at least %s here", seconds(floor.String()))
}

// inSeconds is the policy with its windows as the interface writes them.
func (p *AutoscalingPolicy) inSeconds() *AutoscalingPolicy {
	if p == nil {
		return nil
	}
	return &AutoscalingPolicy{seconds(p.ScaleUpWindow), seconds(p.ScaleDownWindow), seconds(p.ScaleToZeroWindow), p.LoadTargets}
}

// seconds writes a duration the way the interface does: "600s".
func seconds(text string) string {
	d, err := time.ParseDuration(text)
	if text == "" || err != nil {
		return text
	}
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}
