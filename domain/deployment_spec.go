package domain

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

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

// DirectInternet is the direct route that has a host name of its own.
const DirectInternet = "INTERNET"

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
	DraftModel                      *string            `json:"draftModel,omitempty"`
	NgramSpeculationLength          int                `json:"ngramSpeculationLength,omitempty"`
	EnableSessionAffinity           bool               `json:"enableSessionAffinity,omitempty"`
	DirectRouteAPIKeys              []Sealed           `json:"directRouteApiKeys,omitempty"` // as they were kept before DirectKeys
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
	Aliases                         []string           `json:"aliases,omitempty"`           // names under which the keys of every account may ask it
	SpeechFormat                    string             `json:"speechFormat,omitempty"`      // of its model, as it was when the deployment was created; "" of one that answers with text
	DisableAutoDeploy               bool               `json:"disableAutoDeploy,omitempty"` // since its creation: the baseModel's name alone does not mean it
}

// Wrong is what is out of bounds in the settings or contradicts itself,
// whatever the model, the time and the fleet.
func (s DeploymentSpec) Wrong() Violations {
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
	v.Require(s.MaxReplicaCount == nil || *s.MaxReplicaCount >= s.MinReplicaCount, "maxReplicaCount", "must be at least minReplicaCount")
	v.Require(s.MaxReplicaCount == nil || *s.MaxReplicaCount <= 1000, "maxReplicaCount", "must be at most 1000")
	v.Require(s.MinReplicaCount <= 1000, "minReplicaCount", "must be at most 1000")
	v.Require(s.AcceleratorCount >= 0 && s.AcceleratorCount <= 1024, "acceleratorCount", "must be from 0 to 1024")
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
	oneOf(&v, "directRouteType", s.DirectRouteType, "DIRECT_ROUTE_TYPE_UNSPECIFIED", DirectInternet, "CLOUD_A_PRIVATE_SERVICE_CONNECT", "CLOUD_B_PRIVATELINK")
	oneOf(&v, "hotLoadBucketType", s.HotLoadBucketType, "BUCKET_TYPE_UNSPECIFIED", "OBJECT_STORE_SERVER", "OBJECT_STORE_API", "CLOUD_C", "SERVICE_HOSTED")
	s.Placement.check(&v)
	s.AutoscalingPolicy.check(&v)
	v.Require(!s.EnableMTP || s.Drafter() == "", "enableMtp", "lets the model draft for itself, and draftModel another one: give one of them")
	reference(&v, "draftModel", s.Drafter(), "models")
	s.checkListening(&v)
	s.checkAliases(&v)
	return v.Err()
}

func (s DeploymentSpec) maxReplicas() int {
	if s.MaxReplicaCount == nil {
		return max(s.MinReplicaCount, 1)
	}
	return *s.MaxReplicaCount
}

// MaxAliases is how many names a deployment may be bound to.
const MaxAliases = 16

func (s DeploymentSpec) checkAliases(v *Violations) {
	v.Require(len(s.Aliases) <= MaxAliases, "aliases", "must be at most %d", MaxAliases)
	for i, alias := range s.Aliases[:min(len(s.Aliases), MaxAliases)] {
		v.Require(ValidID(alias), "aliases", "%.64q "+IDRule, alias)
		v.Require(!slices.Contains(s.Aliases[:i], alias), "aliases", "names %.64q twice", alias)
	}
}

// hardware is what one replica asks for.
func (s DeploymentSpec) hardware() Hardware {
	return Hardware{s.AcceleratorType, s.AcceleratorCount, s.Precision, s.MaxContextLength, s.DisableDeploymentSizeValidation}
}

// checkSize requires that the model fits into what one replica gets.
func (s DeploymentSpec) checkSize(v *Violations, model ModelSize) {
	model.checkContext(v, s.MaxContextLength)
	checkPrecision(v, s.Precision, s.AcceleratorType)
	model.Accelerators(v, s.hardware())
}

// Drafter is the model that drafts tokens; "" is none.
func (s DeploymentSpec) Drafter() string {
	if s.DraftModel == nil {
		return ""
	}
	return *s.DraftModel
}

// Unused names the settings that count only with others, which are not set.
func (s DeploymentSpec) Unused() (settings []string) {
	add := func(unused bool, setting, with string) {
		if unused {
			settings = append(settings, setting+": kept, but unused without "+with)
		}
	}
	drafts := s.Drafter() != "" || s.NgramSpeculationLength > 0 || s.EnableMTP
	add(s.DraftTokenCount > 0 && !drafts, "draftTokenCount", "draftModel, ngramSpeculationLength or enableMtp, since nothing drafts tokens")
	add(!unspecified(s.HotLoadBucketType) && !s.EnableHotLoad, "hotLoadBucketType", "enableHotLoad")
	add(s.HotLoadBucketURL != "" && !s.EnableHotLoad, "hotLoadBucketUrl", "enableHotLoad")
	return settings
}

// settled is the spec whose accelerators have a type: where they are counted
// and not named, that of the fleet.
func (s DeploymentSpec) settled(fleet string) DeploymentSpec {
	if s.AcceleratorCount > 0 && unspecified(s.AcceleratorType) {
		if s.AcceleratorType = fleet; unspecified(fleet) {
			s.AcceleratorType = DefaultAccelerator
		}
	}
	return s
}

// filled is the spec with its defaults, some of which are the model's.
func (s DeploymentSpec) filled(model ModelSize) DeploymentSpec {
	most := s.maxReplicas()
	s.MaxReplicaCount = &most
	if s.Placement == nil {
		s.Placement = &Placement{MultiRegion: "GLOBAL"}
	}
	var none Violations // what there may be was told before
	s.AcceleratorCount = model.Accelerators(&none, s.hardware())
	s.AutoscalingPolicy = s.AutoscalingPolicy.inSeconds()
	return s
}

// Takes is what one replica needs of its node. On accelerators its model is loaded in
// their memory.
func (s DeploymentSpec) Takes(model Hosted) Resources {
	takes := Resources{CPUMilli: 100, MemoryMiB: LeastReplica >> 20}
	switch {
	case s.SpeechFormat != "":
		takes.MemoryMiB = speechMemoryMiB
	case s.AcceleratorCount == 0:
		takes.MemoryMiB = int64(math.Ceil(model.memory(s.MaxContextLength) / (1 << 20)))
	}
	if s.AcceleratorCount > 0 {
		takes.Accelerators = map[string]int{s.AcceleratorType: s.AcceleratorCount}
	}
	return takes
}

// Served is the precision of the copy of its model that a replica is served
// from, if there is one: addons, and weights that are loaded hot, want those
// that they were trained on.
func (s DeploymentSpec) Served() string {
	if s.EnableAddons || s.EnableHotLoad {
		return ""
	}
	return s.Precision
}

// rollout reports whether replicas of the old spec cannot serve the new one.
func (s DeploymentSpec) rollout(o DeploymentSpec) bool {
	return s.AcceleratorType != o.AcceleratorType || s.AcceleratorCount != o.AcceleratorCount || s.Precision != o.Precision ||
		s.MaxContextLength != o.MaxContextLength || s.EnableHotLoad != o.EnableHotLoad && !unspecified(s.Precision) || s.EnableAddons != o.EnableAddons || s.Drafter() != o.Drafter() ||
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
