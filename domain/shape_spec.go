package domain

import (
	"math/bits"
	"slices"
	"strings"
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
	checkText(&v, s.DisplayName, "")
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

// filled is the settings with the defaults that a model has.
func (s ShapeSpec) filled(model ModelTraits) ShapeSpec {
	if s.AcceleratorType == "" {
		s.AcceleratorType = DefaultAccelerator
	}
	if s.AcceleratorCount == 0 {
		s.AcceleratorCount = EstimatedAccelerators(model.ParameterCount, s.Precision, s.AcceleratorType)
	}
	return s
}

// deviceMemory is what one accelerator holds, in units of 10^9 bytes.
var deviceMemory = map[string]float64{"VENDOR_A_A100_80GB": 80, "VENDOR_A_H100_80GB": 80, "VENDOR_B_MI300X_192GB": 192, "VENDOR_A_A10G_24GB": 24,
	"VENDOR_A_A100_40GB": 40, "VENDOR_A_L4_24GB": 24, "VENDOR_A_H200_141GB": 141, "VENDOR_A_B200_180GB": 180, "VENDOR_B_MI325X_256GB": 256,
	"VENDOR_B_MI350X_288GB": 288, "VENDOR_A_B300_288GB": 288, "VENDOR_A_GB200": 186, "VENDOR_A_GB300": 288}

// EstimatedAccelerators is the fewest devices of a type that hold a model: its
// weights in the precision (2 bytes a parameter where none is given) and a
// fifth as much for attention caches and activations, on a power of two of
// devices. It is 0 for no accelerator.
func EstimatedAccelerators(parameters Count, precision, accelerator string) int {
	memory, known := deviceMemory[accelerator]
	if !known {
		return 0
	}
	need := float64(parameters) * bytesPerParameter(precision) * 1.2 / 1e9
	devices := uint(need/memory) + 1
	if float64(devices-1)*memory >= need && devices > 1 {
		devices--
	}
	return 1 << bits.Len(devices-1)
}

func bytesPerParameter(precision string) float64 {
	switch {
	case fourBit(precision):
		return 0.5
	case strings.HasPrefix(precision, "FP8"):
		return 1
	}
	return 2
}

func fourBit(precision string) bool {
	return precision == "NF4" || strings.HasPrefix(precision, "FP4")
}
