package domain

import "slices"

// ShapeSpec holds the fields of a deployment shape that the caller sets.
type ShapeSpec struct {
	DisplayName                     string `json:"displayName"`
	Description                     string `json:"description"`
	BaseModel                       string `json:"baseModel"`
	AcceleratorCount                int    `json:"acceleratorCount"` // accelerators of one replica
	AcceleratorType                 string `json:"acceleratorType"`
	Precision                       string `json:"precision,omitempty"`
	DisableDeploymentSizeValidation bool   `json:"disableDeploymentSizeValidation,omitempty"`
	EnableAddons                    bool   `json:"enableAddons,omitempty"`
	DraftTokenCount                 int    `json:"draftTokenCount,omitempty"`
	DraftModel                      string `json:"draftModel,omitempty"`
	NgramSpeculationLength          int    `json:"ngramSpeculationLength,omitempty"`
	// this field is stored, but has no effect
	DisableSpeculativeDecoding bool   `json:"disableSpeculativeDecoding,omitempty"`
	EnableSessionAffinity      bool   `json:"enableSessionAffinity,omitempty"`
	NumLoraDeviceCached        int    `json:"numLoraDeviceCached,omitempty"`
	MaxContextLength           int    `json:"maxContextLength,omitempty"`
	PresetType                 string `json:"presetType,omitempty"`
}

// Values of a shape's fields that have a special meaning, and defaults.
const (
	NoAccelerator      = "ACCELERATOR_TYPE_UNSPECIFIED" // replicas with such a shape run on CPUs
	DefaultAccelerator = "VENDOR_A_A100_80GB"
	MultiLora          = "MULTI_LORA" // a value of PresetTypes, and the capability of deployments with this preset
)

// ShapeAcceleratorTypes lists the devices that a shape can request.
var ShapeAcceleratorTypes = append(slices.Clone(AcceleratorTypes), "VENDOR_A_B300_288GB", "VENDOR_A_GB200",
	"VENDOR_A_GB300")

// PresetTypes lists what a shape can be optimized for.
var PresetTypes = []string{"PRESET_TYPE_UNSPECIFIED", "MINIMAL", "FAST", "THROUGHPUT", "FULL_PRECISION",
	"AGENTIC_CODING", "CHAT", "SUMMARIZATION", MultiLora}

// Capabilities returns what deployments with the shape can do besides completions, such as
// MULTI_LORA.
func (s ShapeSpec) Capabilities() []string {
	if s.EnableAddons || s.PresetType == MultiLora {
		return []string{MultiLora}
	}
	return []string{}
}

func (s ShapeSpec) check() Violations {
	var v Violations
	checkShortName(&v, s.DisplayName)
	v.Require(len([]rune(s.Description)) < MaxDescription, "description", "must have at most %d characters",
		MaxDescription-1)
	v.Require(s.BaseModel != "", "baseModel", "is required")
	reference(&v, "baseModel", s.BaseModel, "models")
	reference(&v, "draftModel", s.DraftModel, "models")
	oneOf(&v, "acceleratorType", s.AcceleratorType, ShapeAcceleratorTypes...)
	oneOf(&v, "precision", s.Precision, Precisions...)
	oneOf(&v, "presetType", s.PresetType, PresetTypes...)
	v.Require(s.AcceleratorCount >= 0 && s.AcceleratorCount <= 1024, "acceleratorCount",
		"must be from 0 to 1024; 0 stands for the estimated minimum")
	for _, one := range []struct {
		field string
		n     int
	}{{"draftTokenCount", s.DraftTokenCount}, {"ngramSpeculationLength", s.NgramSpeculationLength},
		{"numLoraDeviceCached", s.NumLoraDeviceCached}, {"maxContextLength", s.MaxContextLength}} {
		v.Require(one.n >= 0 && one.n <= 1<<30, one.field, "must be from 0 to %d; 0 stands for the default", 1<<30)
	}
	return v
}

// hardware returns the hardware that the shape requests for one replica.
func (s ShapeSpec) hardware() Hardware {
	return Hardware{Type: specified(s.AcceleratorType), Count: s.AcceleratorCount, Precision: specified(s.Precision),
		Context: s.MaxContextLength, Unchecked: s.DisableDeploymentSizeValidation}
}

// withDefaults returns the spec with its defaults for a model of this size; fleet is as in
// ModelSize.Resolve, which determines the accelerators. It adds violations to v for settings that
// do not fit the size.
func (s ShapeSpec) withDefaults(v *Violations, model ModelSize, fleet string) ShapeSpec {
	h := model.Resolve(v, s.hardware(), fleet)
	s.AcceleratorType, s.AcceleratorCount = h.Type, h.Count
	return s
}
