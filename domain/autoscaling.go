package domain

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"
)

// AutoscalingPolicy configures when replicas are added and removed. Windows are durations such as
// "30s". DeploymentSpec.Scaling fills in absent fields with the Default constants.
type AutoscalingPolicy struct {
	ScaleUpWindow     string             `json:"scaleUpWindow,omitempty" query:"duration"`
	ScaleDownWindow   string             `json:"scaleDownWindow,omitempty" query:"duration"`
	ScaleToZeroWindow string             `json:"scaleToZeroWindow,omitempty" query:"duration"`
	LoadTargets       map[string]float64 `json:"loadTargets,omitempty"`
}

// Defaults and limits of an AutoscalingPolicy. The operator of a server can lower
// MinScaleToZeroWindow.
const (
	DefaultScaleUpWindow     = 30 * time.Second
	DefaultScaleDownWindow   = 10 * time.Minute
	DefaultScaleToZeroWindow = time.Hour
	MinScaleToZeroWindow     = 5 * time.Minute
	MaxWindow                = time.Hour
	DefaultCapacityTarget    = 0.8
	maxLoadTarget            = 1e12
)

// The keys of AutoscalingPolicy.LoadTargets. CapacityTarget is the fraction of the requests that a
// replica can serve at a time. The other targets are rates or numbers of requests per replica.
const (
	CapacityTarget     = "default"
	TokensTarget       = "tokens_generated_per_second"
	PromptTokensTarget = "prompt_tokens_per_second"
	RequestsTarget     = "requests_per_second"
	ConcurrentTarget   = "concurrent_requests"
)

// LoadTargets lists the keys of AutoscalingPolicy.LoadTargets, in order of evaluation.
var LoadTargets = []string{CapacityTarget, TokensTarget, PromptTokensTarget, RequestsTarget, ConcurrentTarget}

// Scaling holds the bounds, windows and targets by which load scales a deployment.
type Scaling struct {
	Min, Max       int           // bounds of the number of replicas; Max includes revocable ones (see MaxWithRevocable)
	Up, Down, Zero time.Duration // the policy's scaleUpWindow, scaleDownWindow and scaleToZeroWindow
	Targets        map[string]float64
}

// Scaling returns the policy of the spec with its defaults. A policy without loadTargets has a
// capacity target of 0.8.
func (s DeploymentSpec) Scaling() Scaling {
	var p AutoscalingPolicy
	if s.AutoscalingPolicy != nil {
		p = *s.AutoscalingPolicy
	}
	window := func(text string, fallback time.Duration) time.Duration {
		if d, err := time.ParseDuration(text); err == nil {
			return d
		}
		return fallback
	}
	targets := p.LoadTargets
	if len(targets) == 0 {
		targets = map[string]float64{CapacityTarget: DefaultCapacityTarget}
	}
	return Scaling{Min: s.MinReplicaCount, Max: s.MaxWithRevocable(), Targets: targets,
		Up:   window(p.ScaleUpWindow, DefaultScaleUpWindow),
		Down: window(p.ScaleDownWindow, DefaultScaleDownWindow), Zero: window(p.ScaleToZeroWindow, DefaultScaleToZeroWindow)}
}

func (p *AutoscalingPolicy) check(v *Violations) {
	if p == nil {
		return
	}
	window := func(field, text string) {
		d, err := time.ParseDuration(text)
		v.Require(text == "" || err == nil && d >= 0 && d <= MaxWindow, "autoscalingPolicy."+field,
			`must be a duration from 0s to 3600s, such as "30s"`)
	}
	window("scaleUpWindow", p.ScaleUpWindow)
	window("scaleDownWindow", p.ScaleDownWindow)
	window("scaleToZeroWindow", p.ScaleToZeroWindow)
	for _, key := range slices.Sorted(maps.Keys(p.LoadTargets)) {
		target := p.LoadTargets[key]
		v.Require(slices.Contains(LoadTargets, key), "autoscalingPolicy.loadTargets",
			"has the key %.64q, but keys must be among %s%s", key, join(LoadTargets), DidYouMean(key, LoadTargets))
		limit := float64(maxLoadTarget)
		if key == CapacityTarget {
			limit = 1
		}
		v.Require(target > 0 && target <= limit, "autoscalingPolicy.loadTargets",
			"the target of %.64q must be above 0 and at most %g, not %v", key, limit, target)
	}
}

// checkFloor adds a violation to v unless scaleToZeroWindow is at least floor, the minimum that the
// operator of the server sets. A floor of 0 stands for MinScaleToZeroWindow.
func (p *AutoscalingPolicy) checkFloor(v *Violations, floor time.Duration) {
	if p == nil || p.ScaleToZeroWindow == "" {
		return
	}
	floor = cmp.Or(floor, MinScaleToZeroWindow)
	d, err := time.ParseDuration(p.ScaleToZeroWindow)
	v.Require(err != nil || d < 0 || d >= floor, "autoscalingPolicy.scaleToZeroWindow",
		"must be at least %s on this server",
		seconds(floor.String()))
}

// inSeconds returns a copy of the policy with its windows in seconds, such as "600s" for "10m".
func (p *AutoscalingPolicy) inSeconds() *AutoscalingPolicy {
	if p == nil {
		return nil
	}
	return &AutoscalingPolicy{seconds(p.ScaleUpWindow), seconds(p.ScaleDownWindow), seconds(p.ScaleToZeroWindow),
		p.LoadTargets}
}

// seconds formats a duration in seconds, as the API does: "10m" becomes "600s". It returns a text
// that is not a duration unchanged.
func seconds(text string) string {
	d, err := time.ParseDuration(text)
	if text == "" || err != nil {
		return text
	}
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}
