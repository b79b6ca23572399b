package domain

import (
	"math"
	"math/bits"
	"strings"
)

// Attention holds the dimensions of a model's attention layers, which determine the size of its KV
// cache. A dimension of 0 is unknown.
type Attention struct {
	Layers   int `json:"layers,omitempty"`
	KVHeads  int `json:"kvHeads,omitempty"`
	HeadSize int `json:"headSize,omitempty"`
}

// ModelSize holds the properties of a model that determine how much memory it needs. A field of 0
// is unknown, and rules that depend on it are not checked.
type ModelSize struct {
	ParameterCount Count
	ContextLength  int    // maximum length of a context in tokens
	Precision      string // precision of the stored weights
	Attention
	Draft float64 // memory of the draft model that is loaded beside the model, in bytes; 0 without one
}

// Size returns the size of the model. For an addon, use its base model.
func (f ModelMetadata) Size() ModelSize {
	return ModelSize{ParameterCount: f.ParameterCount, ContextLength: f.ContextLength, Precision: f.Precision,
		Attention: f.Attention}
}

// MaxDefaultAccelerators is the highest acceleratorCount that is chosen by default. A replica runs
// on one node, and most nodes have at most 8 accelerators.
const MaxDefaultAccelerators = 8

// Hardware is the hardware that a user requests for one replica, or for one node of a job.
type Hardware struct {
	Type      string // accelerator type, one of ShapeAcceleratorTypes
	Count     int    // number of accelerators; 0 stands for the default: see ModelSize.Accelerators
	Precision string
	Context   int  // context length in tokens; 0 stands for the model's maximum
	Share     int  // thousandths of one device; 0 stands for whole devices
	Unchecked bool // the user set disableDeploymentSizeValidation
}

// deviceMemory is the memory of one accelerator, in units of 10^9 bytes.
var deviceMemory = map[string]float64{"VENDOR_A_A100_80GB": 80, "VENDOR_A_H100_80GB": 80, "VENDOR_B_MI300X_192GB": 192,
	"VENDOR_A_A10G_24GB": 24,
	"VENDOR_A_A100_40GB": 40, "VENDOR_A_L4_24GB": 24, "VENDOR_A_H200_141GB": 141, "VENDOR_A_B200_180GB": 180,
	"VENDOR_B_MI325X_256GB": 256,
	"VENDOR_B_MI350X_288GB": 288, "VENDOR_A_B300_288GB": 288, "VENDOR_A_GB200": 186, "VENDOR_A_GB300": 288}

// weightsOverhead is the memory of a loaded model, divided by the size of its weights: see
// ModelSize.Memory.
const weightsOverhead = 1.2

// Memory returns the memory that a replica of the model needs, in bytes: the weights, a fifth of
// their size for activations and buffers, the KV cache of one context, and the draft model. A fifth
// is the upper end of what EleutherAI's "Transformer Math 101" (2023) found for inference.
func (m ModelSize) Memory(precision string, context int) float64 {
	if context == 0 {
		context = m.ContextLength
	}
	if unspecified(precision) {
		precision = m.Precision
	}
	return float64(m.ParameterCount)*bytesPerParameter(precision)*weightsOverhead +
		float64(context)*m.cachePerToken(precision) + m.Draft
}

// cachePerToken returns the size of the keys and values of one token in bytes, over all layers and
// heads: two bytes per element, or one when the precision keeps the cache in FP8.
//
// If the layers of a model are unknown, they are estimated. A transformer of L layers of width d
// has about 12·L·d² parameters (Kaplan et al., "Scaling Laws for Neural Language Models", 2020,
// section 2.1); in language models, d is about 128·L, and four or more heads share keys and values.
func (m ModelSize) cachePerToken(precision string) float64 {
	size := 2.0
	if strings.Contains(precision, "KV") {
		size = 1
	}
	if m.Layers > 0 && m.KVHeads > 0 && m.HeadSize > 0 {
		return 2 * size * float64(m.Layers) * float64(m.KVHeads) * float64(m.HeadSize)
	}
	const perLayer = 128
	layers := math.Cbrt(float64(m.ParameterCount) / (12 * perLayer * perLayer))
	return 2 * size * layers * perLayer * layers / 4
}

// MinAccelerators returns the minimum number of accelerators of a type whose memory is enough for a
// replica; 0 for a type of unknown memory.
func (m ModelSize) MinAccelerators(precision, accelerator string, context int) int {
	memory, known := deviceMemory[accelerator]
	if !known {
		return 0
	}
	return max(1, int(math.Ceil(m.Memory(precision, context)/(memory*1e9))))
}

// Accelerators returns how many accelerators a replica gets: the requested count, or by default the
// smallest power of two of them whose memory is enough for the model. It adds a violation to v when
// the requested count is too small, or the default is above MaxDefaultAccelerators.
func (m ModelSize) Accelerators(v *Violations, h Hardware) int {
	if unspecified(h.Type) {
		return h.Count
	}
	if h.Share > 0 {
		return m.shareOf(v, h)
	}
	minimum := m.MinAccelerators(h.Precision, h.Type, h.Context)
	gigabytes := m.Memory(h.Precision, h.Context) / 1e9
	switch {
	case h.Count == 0:
		count := 1 << bits.Len(uint(max(minimum, 1)-1))
		v.Require(count <= MaxDefaultAccelerators || h.Unchecked, "acceleratorCount",
			"is required, because the model needs about %.0f GB, which is %d x %s, and the default is at most %d: "+
				"set a count, a larger acceleratorType or a smaller precision",
			gigabytes, minimum, h.Type, MaxDefaultAccelerators)
		return count
	case h.Count > 0 && h.Count < minimum && !h.Unchecked:
		v.Add("acceleratorCount",
			"is %d, but the model needs about %.0f GB, which is at least %d x %s: leave it out, raise it, or set "+
				"disableDeploymentSizeValidation",
			h.Count, gigabytes, minimum, h.Type)
	}
	return h.Count
}

// shareOf returns 1, the number of accelerators of a replica that gets a share of one. It adds a
// violation to v when the share is too small for the model.
func (m ModelSize) shareOf(v *Violations, h Hardware) int {
	v.Require(h.Count <= 1, "acceleratorShare", "is a part of one device, but acceleratorCount is %d: leave one of "+
		"them out", h.Count)
	memory, known := deviceMemory[h.Type]
	if !known || h.Unchecked {
		return 1
	}
	needs := m.Memory(h.Precision, h.Context)
	switch minimum := int(math.Ceil(needs * WholeDevice / (memory * 1e9))); {
	case minimum >= WholeDevice:
		v.Add("acceleratorShare", "is %d, but the model needs about %.1f GB, which is more than a part of one %s: leave "+
			"acceleratorShare out, or set disableDeploymentSizeValidation", h.Share, needs/1e9, h.Type)
	case h.Share < minimum:
		v.Add("acceleratorShare", "is %d, but the model needs about %.1f GB, which is at least %d thousandths of one %s: "+
			"raise it, leave it out, or set disableDeploymentSizeValidation", h.Share, needs/1e9, minimum, h.Type)
	}
	return 1
}

// checkContext adds a violation to v if the context length is above the model's maximum.
func (m ModelSize) checkContext(v *Violations, context int) {
	v.Require(m.ContextLength == 0 || context <= m.ContextLength, "maxContextLength",
		"is %d, but must be at most %d, the model's context length; 0 stands for that length", context, m.ContextLength)
}

// bytesPerParameter returns the size of a weight in bytes; 2 for an unknown precision.
func bytesPerParameter(precision string) float64 {
	switch {
	case precision == "FP32":
		return 4
	case fourBit(precision):
		return 0.5
	case strings.HasPrefix(precision, "FP8") && precision != "FP8_KV":
		return 1
	}
	return 2
}

func fourBit(precision string) bool {
	return precision == "NF4" || strings.HasPrefix(precision, "FP4")
}

// withFP8 and withFP4 hold the accelerator types whose matrix units compute in 8 bits and in 4
// bits. NF4 and FP8_KV are storage formats only and work on all types.
var (
	withFP8 = map[string]bool{"VENDOR_A_H100_80GB": true, "VENDOR_A_H200_141GB": true, "VENDOR_A_L4_24GB": true,
		"VENDOR_A_B200_180GB": true,
		"VENDOR_A_B300_288GB": true, "VENDOR_A_GB200": true, "VENDOR_A_GB300": true, "VENDOR_B_MI300X_192GB": true,
		"VENDOR_B_MI325X_256GB": true, "VENDOR_B_MI350X_288GB": true}
	withFP4 = map[string]bool{"VENDOR_A_B200_180GB": true, "VENDOR_A_B300_288GB": true, "VENDOR_A_GB200": true,
		"VENDOR_A_GB300": true, "VENDOR_B_MI350X_288GB": true}
)

// checkPrecision adds a violation to v if accelerators of the type cannot compute in the precision.
func checkPrecision(v *Violations, precision, accelerator string) {
	if _, known := deviceMemory[accelerator]; !known {
		return
	}
	v.Require(!strings.HasPrefix(precision, "FP8") || precision == "FP8_KV" || withFP8[accelerator], "precision",
		"%s does not compute in FP8, which %s needs: use BF16, or another acceleratorType", accelerator, precision)
	v.Require(!strings.HasPrefix(precision, "FP4") || withFP4[accelerator], "precision",
		"%s does not compute in FP4, which %s needs: use NF4, which only stores weights in 4 bits, or another "+
			"acceleratorType",
		accelerator, precision)
}
