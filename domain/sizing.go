package domain

import (
	"math"
	"math/bits"
	"strings"
)

// Attention is what the size of a model's attention cache follows from. Zero
// is not known.
type Attention struct {
	Layers   int `json:"layers,omitempty"`
	KVHeads  int `json:"kvHeads,omitempty"`
	HeadSize int `json:"headSize,omitempty"`
}

// ModelSize is what decides how much memory a model takes. Zero is not known,
// and what is not known is not checked.
type ModelSize struct {
	ParameterCount Count
	ContextLength  int    // tokens
	Precision      string // as the weights are stored
	Attention
}

// Size is the model's. Of an addon, ask its base model.
func (f ModelFacts) Size() ModelSize {
	return ModelSize{f.ParameterCount, f.ContextLength, f.Precision, f.Attention}
}

// MaxDefaultAccelerators is how many accelerators a replica gets at most unless
// somebody asks for more: a replica runs on one node, and most have no more.
const MaxDefaultAccelerators = 8

// Hardware is what one replica runs on.
type Hardware struct {
	Type      string // of accelerator
	Count     int    // 0 is the default
	Precision string
	Context   int  // tokens; 0 is the model's
	Unchecked bool // the caller knows better
}

// deviceMemory is what one accelerator holds, in units of 10^9 bytes.
var deviceMemory = map[string]float64{"VENDOR_A_A100_80GB": 80, "VENDOR_A_H100_80GB": 80, "VENDOR_B_MI300X_192GB": 192, "VENDOR_A_A10G_24GB": 24,
	"VENDOR_A_A100_40GB": 40, "VENDOR_A_L4_24GB": 24, "VENDOR_A_H200_141GB": 141, "VENDOR_A_B200_180GB": 180, "VENDOR_B_MI325X_256GB": 256,
	"VENDOR_B_MI350X_288GB": 288, "VENDOR_A_B300_288GB": 288, "VENDOR_A_GB200": 186, "VENDOR_A_GB300": 288}

// weightsRoom is the weights, and what goes with them.
const weightsRoom = 1.2

// Memory is what a replica of the model takes, in bytes: its weights, a fifth
// as much for activations and buffers, and the attention cache of one context.
// The fifth is the upper end of what EleutherAI's "Transformer Math 101" (2023)
// found for inference.
func (m ModelSize) Memory(precision string, context int) float64 {
	if context == 0 {
		context = m.ContextLength
	}
	if unspecified(precision) {
		precision = m.Precision
	}
	return float64(m.ParameterCount)*bytesPerParameter(precision)*weightsRoom + float64(context)*m.cachePerToken(precision)
}

// cachePerToken is a key and a value for each layer, head and element, in
// bytes: two each, or one where the precision keeps the cache in FP8.
//
// Of a model whose layers are not known they are estimated. A transformer of L
// layers of width d has about 12·L·d² parameters (Kaplan et al., "Scaling Laws
// for Neural Language Models", 2020, section 2.1); models of text have about
// d = 128·L, and their heads share keys and values by four or more.
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

// LeastAccelerators is the fewest devices of a type that hold the model; 0 for
// a type of unknown size.
func (m ModelSize) LeastAccelerators(precision, accelerator string, context int) int {
	memory, known := deviceMemory[accelerator]
	if !known {
		return 0
	}
	return max(1, int(math.Ceil(m.Memory(precision, context)/(memory*1e9))))
}

// Accelerators is how many devices a replica gets: those asked for, if the
// model fits into them, or else the least power of two that it fits into. What
// is wrong goes to v.
func (m ModelSize) Accelerators(v *Violations, h Hardware) int {
	if unspecified(h.Type) {
		return h.Count
	}
	least := m.LeastAccelerators(h.Precision, h.Type, h.Context)
	gigabytes := m.Memory(h.Precision, h.Context) / 1e9
	switch {
	case h.Count == 0:
		count := 1 << bits.Len(uint(max(least, 1)-1))
		v.Require(count <= MaxDefaultAccelerators || h.Unchecked, "acceleratorCount",
			"is required, since the model takes about %.0f GB, which is %d x %s, and a replica gets at most %d unasked: give a count, a larger acceleratorType or a smaller precision",
			gigabytes, least, h.Type, MaxDefaultAccelerators)
		return count
	case h.Count > 0 && h.Count < least && !h.Unchecked:
		v.Add("acceleratorCount", "is %d, but the model takes about %.0f GB, which needs at least %d x %s: leave it out, raise it, or set disableDeploymentSizeValidation",
			h.Count, gigabytes, least, h.Type)
	}
	return h.Count
}

// checkContext requires that the model can see that far.
func (m ModelSize) checkContext(v *Violations, context int) {
	v.Require(m.ContextLength == 0 || context <= m.ContextLength, "maxContextLength", "must be at most %d, the model's context window; 0 stands for that", m.ContextLength)
}

// bytesPerParameter is the size of a weight; two bytes where nothing is known.
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

// Devices whose matrix units compute in eight bits, and in four. NF4 and FP8_KV
// only store numbers that small, and work everywhere.
var (
	withFP8 = map[string]bool{"VENDOR_A_H100_80GB": true, "VENDOR_A_H200_141GB": true, "VENDOR_A_L4_24GB": true, "VENDOR_A_B200_180GB": true,
		"VENDOR_A_B300_288GB": true, "VENDOR_A_GB200": true, "VENDOR_A_GB300": true, "VENDOR_B_MI300X_192GB": true, "VENDOR_B_MI325X_256GB": true, "VENDOR_B_MI350X_288GB": true}
	withFP4 = map[string]bool{"VENDOR_A_B200_180GB": true, "VENDOR_A_B300_288GB": true, "VENDOR_A_GB200": true, "VENDOR_A_GB300": true, "VENDOR_B_MI350X_288GB": true}
)

// checkPrecision requires that the accelerator computes in the precision.
func checkPrecision(v *Violations, precision, accelerator string) {
	if _, known := deviceMemory[accelerator]; !known {
		return
	}
	v.Require(!strings.HasPrefix(precision, "FP8") || precision == "FP8_KV" || withFP8[accelerator], "precision",
		"%s does not compute in FP8, which %s needs: use BF16, or another acceleratorType", accelerator, precision)
	v.Require(!strings.HasPrefix(precision, "FP4") || withFP4[accelerator], "precision",
		"%s does not compute in FP4, which %s needs: use NF4, which only stores weights so, or another acceleratorType", accelerator, precision)
}
