package domain

import (
	"cmp"
	"slices"
)

// ShapeSpec is what the caller sets of a deployment shape.
type ShapeSpec struct {
	DisplayName                     string `json:"displayName"`
	Description                     string `json:"description"`
	BaseModel                       string `json:"baseModel"`
	AcceleratorCount                int    `json:"acceleratorCount"` // per replica
	AcceleratorType                 string `json:"acceleratorType"`
	Precision                       string `json:"precision,omitempty"`
	DisableDeploymentSizeValidation bool   `json:"disableDeploymentSizeValidation,omitempty"`
	EnableAddons                    bool   `json:"enableAddons,omitempty"`
	DraftTokenCount                 int    `json:"draftTokenCount,omitempty"`
	DraftModel                      string `json:"draftModel,omitempty"`
	NgramSpeculationLength          int    `json:"ngramSpeculationLength,omitempty"`
	DisableSpeculativeDecoding      bool   `json:"disableSpeculativeDecoding,omitempty"` // has no effect
	EnableSessionAffinity           bool   `json:"enableSessionAffinity,omitempty"`
	NumLoraDeviceCached             int    `json:"numLoraDeviceCached,omitempty"`
	MaxContextLength                int    `json:"maxContextLength,omitempty"`
	PresetType                      string `json:"presetType,omitempty"`
}

// Values of a shape's enumerations that others do not share.
const (
	NoAccelerator      = "ACCELERATOR_TYPE_UNSPECIFIED" // of a shape: replicas run on CPUs alone
	DefaultAccelerator = "VENDOR_A_A100_80GB"
	MultiLora          = "MULTI_LORA" // a preset, and the capability that comes of it
)

// ShapeAcceleratorTypes are the devices that a shape may ask for.
var ShapeAcceleratorTypes = append(slices.Clone(AcceleratorTypes), "VENDOR_A_B300_288GB", "VENDOR_A_GB200", "VENDOR_A_GB300")

// PresetTypes say what a shape is good for.
var PresetTypes = []string{"PRESET_TYPE_UNSPECIFIED", "MINIMAL", "FAST", "THROUGHPUT", "FULL_PRECISION", "AGENTIC_CODING", "CHAT", "SUMMARIZATION", MultiLora}

// Capabilities are what deployments made with the shape can do beyond answering.
func (s ShapeSpec) Capabilities() []string {
	if s.EnableAddons || s.PresetType == MultiLora {
		return []string{MultiLora}
	}
	return []string{}
}

func (s ShapeSpec) check() Violations {
	var v Violations
	checkShortName(&v, s.DisplayName)
	v.Require(len([]rune(s.Description)) < MaxDescription, "description", "must have fewer than %d characters", MaxDescription)
	v.Require(s.BaseModel != "", "baseModel", "is required")
	reference(&v, "baseModel", s.BaseModel, "models")
	reference(&v, "draftModel", s.DraftModel, "models")
	oneOf(&v, "acceleratorType", s.AcceleratorType, ShapeAcceleratorTypes...)
	oneOf(&v, "precision", s.Precision, Precisions...)
	oneOf(&v, "presetType", s.PresetType, PresetTypes...)
	v.Require(s.AcceleratorCount >= 0 && s.AcceleratorCount <= 1024, "acceleratorCount", "must be from 0 (the estimated minimum) to 1024")
	v.Require(s.AcceleratorType != NoAccelerator || s.AcceleratorCount == 0, "acceleratorCount", "must be left out where acceleratorType is %s, which serves on CPUs alone", NoAccelerator)
	for _, one := range []struct {
		field string
		n     int
	}{{"draftTokenCount", s.DraftTokenCount}, {"ngramSpeculationLength", s.NgramSpeculationLength},
		{"numLoraDeviceCached", s.NumLoraDeviceCached}, {"maxContextLength", s.MaxContextLength}} {
		v.Require(one.n >= 0 && one.n <= 1<<30, one.field, "must be from 0 (the default) to %d", 1<<30)
	}
	return v
}

// filled is the settings with the defaults that a model of this size and a fleet
// with such accelerators have; what contradicts the size goes to v.
func (s ShapeSpec) filled(v *Violations, model ModelSize, accelerator string) ShapeSpec {
	s.AcceleratorType = cmp.Or(s.AcceleratorType, accelerator, DefaultAccelerator)
	model.checkContext(v, s.MaxContextLength)
	checkPrecision(v, s.Precision, s.AcceleratorType)
	s.AcceleratorCount = model.Accelerators(v, Hardware{s.AcceleratorType, s.AcceleratorCount, s.Precision, s.MaxContextLength, s.DisableDeploymentSizeValidation})
	return s
}
