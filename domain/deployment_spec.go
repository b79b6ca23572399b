package domain

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// AutoscalingPolicy says when replicas are added and removed. Windows are
// durations such as "30s".
type AutoscalingPolicy struct {
	ScaleUpWindow     string             `json:"scaleUpWindow,omitempty"`
	ScaleDownWindow   string             `json:"scaleDownWindow,omitempty"`
	ScaleToZeroWindow string             `json:"scaleToZeroWindow,omitempty"`
	LoadTargets       map[string]float64 `json:"loadTargets,omitempty"`
}

// Placement says where replicas may run.
type Placement struct {
	Region      string   `json:"region,omitempty"`
	MultiRegion string   `json:"multiRegion,omitempty"`
	Regions     []string `json:"regions,omitempty"`
}

// AutoTune is a performance profile.
type AutoTune struct {
	LongPrompt bool `json:"longPrompt"`
}

// DeploymentSpec is what the caller sets.
type DeploymentSpec struct {
	BaseModel                       string             `json:"baseModel"`
	DisplayName                     string             `json:"displayName"`
	Description                     string             `json:"description"`
	ExpireTime                      *time.Time         `json:"expireTime,omitempty"`
	MinReplicaCount                 int                `json:"minReplicaCount"`
	MaxReplicaCount                 *int               `json:"maxReplicaCount,omitempty"`
	MaxWithRevocableReplicaCount    int                `json:"maxWithRevocableReplicaCount,omitempty"`
	AutoscalingPolicy               *AutoscalingPolicy `json:"autoscalingPolicy,omitempty"`
	AcceleratorCount                int                `json:"acceleratorCount,omitempty"` // per replica
	AcceleratorType                 string             `json:"acceleratorType,omitempty"`
	Precision                       string             `json:"precision,omitempty"`
	EnableAddons                    bool               `json:"enableAddons,omitempty"`
	DraftTokenCount                 int                `json:"draftTokenCount,omitempty"`
	DraftModel                      string             `json:"draftModel,omitempty"`
	NgramSpeculationLength          int                `json:"ngramSpeculationLength,omitempty"`
	EnableSessionAffinity           bool               `json:"enableSessionAffinity,omitempty"`
	DirectRouteAPIKeys              []Sealed           `json:"directRouteApiKeys,omitempty"`
	DirectRouteType                 string             `json:"directRouteType,omitempty"`
	DeploymentTemplate              string             `json:"deploymentTemplate,omitempty"`
	AutoTune                        *AutoTune          `json:"autoTune,omitempty"`
	Placement                       *Placement         `json:"placement,omitempty"`
	MaxContextLength                int                `json:"maxContextLength,omitempty"`
	DisableDeploymentSizeValidation bool               `json:"disableDeploymentSizeValidation,omitempty"`
	EnableMTP                       bool               `json:"enableMtp,omitempty"`
	EnableHotLoad                   bool               `json:"enableHotLoad,omitempty"`
	HotLoadBucketType               string             `json:"hotLoadBucketType,omitempty"`
	HotLoadBucketURL                string             `json:"hotLoadBucketUrl,omitempty"`
	EnableHotReloadLatestAddon      bool               `json:"enableHotReloadLatestAddon,omitempty"`
	DeploymentShape                 string             `json:"deploymentShape,omitempty"`
	ActiveModelVersion              string             `json:"activeModelVersion,omitempty"`
	TargetModelVersion              string             `json:"targetModelVersion,omitempty"`
	PricingPlanID                   string             `json:"pricingPlanId,omitempty"`
}

// loadTargets are the keys of AutoscalingPolicy.LoadTargets.
var loadTargets = []string{"default", "tokens_generated_per_second", "prompt_tokens_per_second", "requests_per_second", "concurrent_requests"}

func (s DeploymentSpec) check() error {
	var v Violations
	v.Require(s.BaseModel != "", "baseModel", "is required")
	reference(&v, "baseModel", s.BaseModel, "models")
	checkText(&v, s.DisplayName, s.Description)
	v.Require(s.MinReplicaCount >= 0, "minReplicaCount", "must not be negative")
	v.Require(s.MaxReplicaCount == nil || *s.MaxReplicaCount >= s.MinReplicaCount, "maxReplicaCount", "must be at least minReplicaCount")
	v.Require(s.MaxReplicaCount == nil || *s.MaxReplicaCount <= 1000, "maxReplicaCount", "must be at most 1000")
	v.Require(s.MinReplicaCount <= 1000, "minReplicaCount", "must be at most 1000")
	v.Require(s.AcceleratorCount >= 0 && s.AcceleratorCount <= 1024, "acceleratorCount", "must be from 0 to 1024")
	v.Require(s.AcceleratorCount == 0 || !unspecified(s.AcceleratorType), "acceleratorType", "is required with acceleratorCount")
	v.Require(s.MaxContextLength >= 0, "maxContextLength", "must not be negative")
	v.Require(s.DraftTokenCount >= 0, "draftTokenCount", "must not be negative")
	v.Require(s.NgramSpeculationLength >= 0, "ngramSpeculationLength", "must not be negative")
	v.Require(s.MaxWithRevocableReplicaCount == 0 || s.MaxWithRevocableReplicaCount >= s.maxReplicas(),
		"maxWithRevocableReplicaCount", "must be at least maxReplicaCount")
	devices := AcceleratorTypes
	if s.DeploymentShape != "" {
		devices = ShapeAcceleratorTypes
	}
	oneOf(&v, "acceleratorType", s.AcceleratorType, devices...)
	oneOf(&v, "precision", s.Precision, Precisions...)
	oneOf(&v, "directRouteType", s.DirectRouteType, "DIRECT_ROUTE_TYPE_UNSPECIFIED", "INTERNET", "CLOUD_A_PRIVATE_SERVICE_CONNECT", "CLOUD_B_PRIVATELINK")
	oneOf(&v, "hotLoadBucketType", s.HotLoadBucketType, "BUCKET_TYPE_UNSPECIFIED", "OBJECT_STORE_SERVER", "OBJECT_STORE_API", "CLOUD_C", "SERVICE_HOSTED")
	s.Placement.check(&v)
	s.AutoscalingPolicy.check(&v)
	return v.Err()
}

func (s DeploymentSpec) maxReplicas() int {
	if s.MaxReplicaCount == nil {
		return max(s.MinReplicaCount, 1)
	}
	return *s.MaxReplicaCount
}

// filled is the spec with its defaults.
func (s DeploymentSpec) filled() DeploymentSpec {
	most := s.maxReplicas()
	s.MaxReplicaCount = &most
	if s.Placement == nil {
		s.Placement = &Placement{MultiRegion: "GLOBAL"}
	}
	if !unspecified(s.AcceleratorType) && s.AcceleratorCount == 0 {
		s.AcceleratorCount = 1
	}
	if p := s.AutoscalingPolicy; p != nil {
		s.AutoscalingPolicy = &AutoscalingPolicy{seconds(p.ScaleUpWindow), seconds(p.ScaleDownWindow), seconds(p.ScaleToZeroWindow), p.LoadTargets}
	}
	return s
}

// Takes is what one replica needs of its node.
func (s DeploymentSpec) Takes() Resources {
	takes := Resources{CPUMilli: 100, MemoryMiB: 128}
	if s.AcceleratorCount > 0 {
		takes.Accelerators = map[string]int{s.AcceleratorType: s.AcceleratorCount}
	}
	return takes
}

// rollout tells whether replicas of the old spec cannot serve the new one.
func (s DeploymentSpec) rollout(o DeploymentSpec) bool {
	return s.AcceleratorType != o.AcceleratorType || s.AcceleratorCount != o.AcceleratorCount || s.Precision != o.Precision ||
		s.MaxContextLength != o.MaxContextLength || s.EnableAddons != o.EnableAddons || s.DraftModel != o.DraftModel ||
		s.DraftTokenCount != o.DraftTokenCount || s.NgramSpeculationLength != o.NgramSpeculationLength || s.DeploymentShape != o.DeploymentShape
}

func unspecified(enum string) bool { return enum == "" || strings.HasSuffix(enum, "_UNSPECIFIED") }

func (p *Placement) check(v *Violations) {
	if p == nil {
		return
	}
	given := 0
	for _, set := range []bool{!unspecified(p.Region), !unspecified(p.MultiRegion), len(p.Regions) > 0} {
		if set {
			given++
		}
	}
	v.Require(given <= 1, "placement", "give at most one of region, multiRegion and regions")
	oneOf(v, "placement.region", p.Region, Regions...)
	oneOf(v, "placement.multiRegion", p.MultiRegion, MultiRegions...)
	for i, r := range p.Regions {
		oneOf(v, "placement.regions["+strconv.Itoa(i)+"]", r, Regions...)
	}
}

// MaxWindow is the longest autoscaling window.
const MaxWindow = time.Hour

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
		v.Require(slices.Contains(loadTargets, key), "autoscalingPolicy.loadTargets", "keys must be %s", join(loadTargets))
		v.Require(target > 0 && (key != "default" || target <= 1), "autoscalingPolicy.loadTargets", "targets must be positive, and default at most 1")
	}
}

// seconds writes a duration the way the interface does: "600s".
func seconds(text string) string {
	d, err := time.ParseDuration(text)
	if text == "" || err != nil {
		return text
	}
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}
