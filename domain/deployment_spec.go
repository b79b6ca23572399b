package domain

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Placement restricts the regions in which the replicas of a deployment run.
type Placement struct {
	Region      string   `json:"region,omitempty"`
	MultiRegion string   `json:"multiRegion,omitempty"`
	Regions     []string `json:"regions,omitempty"`
}

// AutoTune selects what the replicas of a deployment are optimized for.
type AutoTune struct {
	LongPrompt bool `json:"longPrompt"`
}

// DirectInternet is the type of direct route over the Internet, with a host name per deployment.
const DirectInternet = "INTERNET"

// DeploymentSpec holds the fields of a deployment that the caller sets.
type DeploymentSpec struct {
	BaseModel                    string             `json:"baseModel"`
	DisplayName                  string             `json:"displayName"`
	Description                  string             `json:"description"`
	ExpireTime                   *time.Time         `json:"expireTime,omitempty"`
	MinReplicaCount              int                `json:"minReplicaCount"`
	MaxReplicaCount              *int               `json:"maxReplicaCount,omitempty"`
	MaxWithRevocableReplicaCount int                `json:"maxWithRevocableReplicaCount,omitempty"`
	AutoscalingPolicy            *AutoscalingPolicy `json:"autoscalingPolicy,omitempty"`
	AcceleratorCount             int                `json:"acceleratorCount,omitempty"` // accelerators of one replica
	AcceleratorType              string             `json:"acceleratorType,omitempty"`
	// share of one accelerator for each replica, in thousandths; 0: whole ones
	AcceleratorShare       int     `json:"acceleratorShare,omitempty"`
	Precision              string  `json:"precision,omitempty"`
	EnableAddons           bool    `json:"enableAddons,omitempty"`
	DraftTokenCount        int     `json:"draftTokenCount,omitempty"`
	DraftModel             *string `json:"draftModel,omitempty"`
	NgramSpeculationLength int     `json:"ngramSpeculationLength,omitempty"`
	EnableSessionAffinity  bool    `json:"enableSessionAffinity,omitempty"`
	// keys of the direct route, sealed, in events of earlier versions; see Deployment.DirectKeys
	DirectRouteAPIKeys []Sealed   `json:"directRouteApiKeys,omitempty"`
	DirectRouteType    string     `json:"directRouteType,omitempty"`
	DeploymentTemplate string     `json:"deploymentTemplate,omitempty"`
	AutoTune           *AutoTune  `json:"autoTune,omitempty"`
	Placement          *Placement `json:"placement,omitempty"`
	// PACK or SPREAD; "" is the default, a mix of both
	PlacementStrategy               string `json:"placementStrategy,omitempty"`
	MaxContextLength                int    `json:"maxContextLength,omitempty"`
	DisableDeploymentSizeValidation bool   `json:"disableDeploymentSizeValidation,omitempty"`
	EnableMTP                       bool   `json:"enableMtp,omitempty"`
	EnableHotLoad                   bool   `json:"enableHotLoad,omitempty"`
	HotLoadBucketType               string `json:"hotLoadBucketType,omitempty"`
	HotLoadBucketURL                string `json:"hotLoadBucketUrl,omitempty"`
	EnableHotReloadLatestAddon      bool   `json:"enableHotReloadLatestAddon,omitempty"`
	DeploymentShape                 string `json:"deploymentShape,omitempty"`
	PricingPlanID                   string `json:"pricingPlanId,omitempty"`
	// model names under which API keys of every account can call the deployment
	Aliases []string `json:"aliases,omitempty"`
	// format of a speech model, recorded when the deployment is created; "" for a model that
	// generates text
	SpeechFormat string `json:"speechFormat,omitempty"`
	// set at creation: requests for the baseModel's name alone are not routed to the deployment
	DisableAutoDeploy bool `json:"disableAutoDeploy,omitempty"`
	// set at creation: replicas draft no tokens, not even for requests with a prediction
	DisableSpeculativeDecoding bool `json:"disableSpeculativeDecoding,omitempty"`
}

// Validate returns the violations of rules that depend only on the spec, not on the model, the time
// or the fleet.
func (s DeploymentSpec) Validate() Violations {
	f, ok := s.check().(*Error)
	if !ok {
		return nil
	}
	return f.Violations
}

func (s DeploymentSpec) check() error {
	var v Violations
	v.Require(s.BaseModel != "", "baseModel", "is required")
	reference(&v, "baseModel", s.BaseModel, "models")
	checkShortName(&v, s.DisplayName)
	checkText(&v, "", s.Description)
	v.Require(s.MinReplicaCount >= 0, "minReplicaCount", "must not be negative")
	if highest := s.MaxReplicaCount; highest != nil {
		v.Require(*highest >= s.MinReplicaCount, "maxReplicaCount", "must be at least minReplicaCount (%d), is %d",
			s.MinReplicaCount, *highest)
		v.Require(*highest <= 1000, "maxReplicaCount", "must be at most 1000")
	}
	v.Require(s.MinReplicaCount <= 1000, "minReplicaCount", "must be at most 1000")
	v.Require(s.AcceleratorCount >= 0 && s.AcceleratorCount <= maxAccelerators, "acceleratorCount",
		"must be from 0 to %d", maxAccelerators)
	v.Require(s.AcceleratorShare >= 0 && s.AcceleratorShare < WholeDevice, "acceleratorShare",
		"is %d: it must be from 1 to %d thousandths of one device, or 0 for whole devices", s.AcceleratorShare,
		WholeDevice-1)
	v.Require(s.AcceleratorShare == 0 || s.DeploymentShape == "", "acceleratorShare",
		"cannot be set with deploymentShape, which determines whole devices: leave one of them out")
	v.Require(s.AcceleratorShare == 0 || s.SpeechFormat == "", "acceleratorShare",
		"is %d, but the engines of speech models do not limit their memory to a share: leave it out", s.AcceleratorShare)
	v.Require(s.MaxContextLength >= 0, "maxContextLength", "must not be negative")
	v.Require(s.DraftTokenCount >= 0, "draftTokenCount", "must not be negative")
	v.Require(s.NgramSpeculationLength >= 0, "ngramSpeculationLength", "must not be negative")
	v.Require(s.MaxWithRevocableReplicaCount == 0 || s.MaxWithRevocableReplicaCount >= s.MaxReplicas(),
		"maxWithRevocableReplicaCount", "must be at least maxReplicaCount (%d), is %d", s.MaxReplicas(),
		s.MaxWithRevocableReplicaCount)
	v.Require(s.MaxWithRevocableReplicaCount <= 1000, "maxWithRevocableReplicaCount", "must be at most 1000")
	devices := AcceleratorTypes
	if s.DeploymentShape != "" {
		devices = ShapeAcceleratorTypes
	}
	oneOf(&v, "acceleratorType", s.AcceleratorType, devices...)
	oneOf(&v, "precision", s.Precision, Precisions...)
	oneOf(&v, "directRouteType", s.DirectRouteType, "DIRECT_ROUTE_TYPE_UNSPECIFIED", DirectInternet,
		"CLOUD_A_PRIVATE_SERVICE_CONNECT", "CLOUD_B_PRIVATELINK")
	oneOf(&v, "hotLoadBucketType", s.HotLoadBucketType, "BUCKET_TYPE_UNSPECIFIED", "OBJECT_STORE_SERVER",
		"OBJECT_STORE_API", "CLOUD_C", "SERVICE_HOSTED")
	s.Placement.check(&v)
	oneOf(&v, "placementStrategy", s.PlacementStrategy, PlacementStrategies...)
	s.AutoscalingPolicy.check(&v)
	v.Require(!s.EnableMTP || s.Drafter() == "", "enableMtp",
		"makes the model draft its own tokens, and draftModel names another model to draft them: set only one")
	reference(&v, "draftModel", s.Drafter(), "models")
	s.checkSpeech(&v)
	s.checkAliases(&v)
	return v.Err()
}

// MaxReplicas returns maxReplicaCount, or its default if it is not set.
func (s DeploymentSpec) MaxReplicas() int {
	if s.MaxReplicaCount == nil {
		return max(s.MinReplicaCount, 1)
	}
	return *s.MaxReplicaCount
}

// MaxWithRevocable returns the maximum number of replicas, including revocable ones. Revocable
// replicas are those above maxReplicaCount; they run only in capacity that no other work needs.
func (s DeploymentSpec) MaxWithRevocable() int {
	return max(s.MaxReplicas(), s.MaxWithRevocableReplicaCount)
}

// MaxAliases is the maximum number of aliases of a deployment.
const MaxAliases = 16

func (s DeploymentSpec) checkAliases(v *Violations) {
	v.Require(len(s.Aliases) <= MaxAliases, "aliases", "must have at most %d entries", MaxAliases)
	for i, alias := range s.Aliases[:min(len(s.Aliases), MaxAliases)] {
		v.Require(ValidID(alias), "aliases", "%.64q "+IDRule, alias)
		v.Require(!slices.Contains(s.Aliases[:i], alias), "aliases", "names %.64q twice", alias)
	}
}

// hardware returns the hardware that the spec requests for one replica.
func (s DeploymentSpec) hardware() Hardware {
	return Hardware{Type: specified(s.AcceleratorType), Count: s.AcceleratorCount, Precision: specified(s.Precision),
		Context: s.MaxContextLength, Share: s.AcceleratorShare, Unchecked: s.DisableDeploymentSizeValidation}
}

// resolve returns the spec with the accelerators that one replica gets: see ModelSize.Resolve.
// fleet is the accelerator type if the spec names none. fleet is ignored with a shape, which
// determines the type, and for PocketSphinx, which computes on CPUs only.
func (s DeploymentSpec) resolve(v *Violations, model ModelSize, fleet string) DeploymentSpec {
	if s.DeploymentShape != "" || s.SpeechFormat == SpeechPocketsphinx {
		fleet = NoAccelerator
	}
	h := model.Resolve(v, s.hardware(), fleet)
	s.AcceleratorType, s.AcceleratorCount = specified(h.Type), h.Count
	return s
}

// resolveUpdate is resolve for s, the updated spec of a deployment whose spec was old. If the
// update does not change the hardware settings, the accelerators of old stay and are not checked,
// because an earlier version of anneal may have chosen them by another rule.
func (s DeploymentSpec) resolveUpdate(v *Violations, old DeploymentSpec, model ModelSize, fleet string) DeploymentSpec {
	before, after := old.hardware(), s.hardware()
	if before.Type == after.Type && before.Count == after.Count {
		fleet = old.AcceleratorType
	}
	if before != after {
		s = s.resolve(v, model, fleet)
	}
	if specified(s.AcceleratorType) == before.Type {
		s.AcceleratorType = old.AcceleratorType
	}
	return s
}

// LongPrompts reports whether replicas have the profile for long prompts: a larger KV cache, which
// keeps more prompt prefixes, and more prompt tokens in one step.
func (s DeploymentSpec) LongPrompts() bool { return s.AutoTune != nil && s.AutoTune.LongPrompt }

// Drafter returns the draft model; "" is none.
func (s DeploymentSpec) Drafter() string {
	if s.DraftModel == nil {
		return ""
	}
	return *s.DraftModel
}

// withDefaults returns the spec with unset fields set to their defaults, except those that resolve
// sets.
func (s DeploymentSpec) withDefaults() DeploymentSpec {
	replicas := s.MaxReplicas()
	s.MaxReplicaCount = &replicas
	if s.Placement == nil {
		s.Placement = &Placement{MultiRegion: "GLOBAL"}
	}
	s.AutoscalingPolicy = s.AutoscalingPolicy.inSeconds()
	return s
}

// ReplicaResources returns the resources that one replica requests on its node. A replica with
// accelerators loads its model into the accelerators' memory.
func (s DeploymentSpec) ReplicaResources(model Hosted) Resources {
	takes := Resources{CPUMilli: 100, MemoryMiB: MinReplicaMemory >> 20}
	switch {
	case s.SpeechFormat != "":
		takes.MemoryMiB = speechMemoryMiB
	case s.AcceleratorCount == 0:
		takes.MemoryMiB = int64(math.Ceil(model.memory(s.MaxContextLength, s.LongPrompts())/(1<<20))) +
			s.DraftMemoryMiB(model)
	}
	if s.AcceleratorCount > 0 {
		takes.Accelerators = map[string]int{s.AcceleratorType: s.AcceleratorCount}
		takes.Share.Milli = s.AcceleratorShare
	}
	return takes
}

// DraftMemoryMiB returns how much of the memory in ReplicaResources is for the draft model, in MiB.
func (s DeploymentSpec) DraftMemoryMiB(model Hosted) int64 {
	if model.Draft == nil || s.AcceleratorCount > 0 || s.ServedDrafter() == "" {
		return 0
	}
	return int64(math.Ceil(model.Draft.memory(s.MaxContextLength, false) / (1 << 20)))
}

// ServedDrafter returns the draft model that replicas load; "" is none.
func (s DeploymentSpec) ServedDrafter() string {
	if s.DisableSpeculativeDecoding || s.SpeechFormat != "" {
		return ""
	}
	return s.Drafter()
}

// ServedPrecision returns the precision of the model's copy that replicas serve if the copy exists;
// "" stands for the model's original weights. It is "" with addons or hot loading, because adapters
// and hot-loaded weights fit only the weights that they were trained on.
func (s DeploymentSpec) ServedPrecision() string {
	if s.EnableAddons || s.EnableHotLoad {
		return ""
	}
	return s.Precision
}

// rollout reports whether a change of the deployment's spec from o to s replaces its replicas.
func (s DeploymentSpec) rollout(o DeploymentSpec) bool {
	return s.AcceleratorType != o.AcceleratorType || s.AcceleratorCount != o.AcceleratorCount ||
		s.AcceleratorShare != o.AcceleratorShare || s.Precision != o.Precision ||
		s.MaxContextLength != o.MaxContextLength || s.EnableHotLoad != o.EnableHotLoad && !unspecified(s.Precision) ||
		s.EnableAddons != o.EnableAddons || s.Drafter() != o.Drafter() ||
		s.DraftTokenCount != o.DraftTokenCount || s.NgramSpeculationLength != o.NgramSpeculationLength ||
		s.DeploymentShape != o.DeploymentShape || s.LongPrompts() != o.LongPrompts()
}

func unspecified(enum string) bool { return enum == "" || strings.HasSuffix(enum, "_UNSPECIFIED") }

// specified returns the value of an enumeration, or "" for its …_UNSPECIFIED value.
func specified(enum string) string {
	if unspecified(enum) {
		return ""
	}
	return enum
}

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
