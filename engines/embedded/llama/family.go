package llama

import (
	"math"
	"slices"

	"anneal/domain"
)

const llamaType = "llama"

// families are the names of the supported architectures in transformers, by model_type.
var families = map[string]string{
	llamaType: "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
	"qwen3": "Qwen3ForCausalLM",
}

// HeadNorms reports whether the model normalizes each head of queries and keys.
func (c *Config) HeadNorms() bool { return c.ModelType == "qwen3" }

// Biased reports whether a projection has a bias.
func (c *Config) Biased(m Module) bool {
	switch {
	case m >= Gate:
		return c.MLPBias && c.ModelType == llamaType
	case c.ModelType == "qwen2":
		return m != Output
	}
	return c.AttentionBias
}

// biases returns the total length of the biases of an input's projections.
func (c *Config) biases(input Input) int {
	n := 0
	for _, m := range inputs[input] {
		if out, _ := m.Shape(c); c.Biased(m) {
			n += out
		}
	}
	return n
}

// bias returns the bias of module m in layer l; nil if the module has none.
func (c *Config) bias(l *Layer, m Module) []float32 {
	if !c.Biased(m) {
		return nil
	}
	at := 0
	for input, modules := range inputs {
		if !slices.Contains(modules, m) {
			continue
		}
		for _, other := range modules {
			out, _ := other.Shape(c)
			if other == m {
				return l.Bias[input][at : at+out]
			}
			at += out
		}
	}
	return nil
}

// Rotary is the configuration of rotary embeddings in files that set more than rope_theta.
type Rotary struct {
	Type              string  `json:"rope_type,omitempty"`
	Legacy            string  `json:"type,omitempty"`
	Theta             float64 `json:"rope_theta,omitempty"`
	Factor            float64 `json:"factor,omitempty"`
	LowFreqFactor     float64 `json:"low_freq_factor,omitempty"`
	HighFreqFactor    float64 `json:"high_freq_factor,omitempty"`
	OriginalPositions int     `json:"original_max_position_embeddings,omitempty"`
	Partial           float64 `json:"partial_rotary_factor,omitempty"`
}

// The supported kinds of rope scaling.
const (
	LinearRope = "linear"
	Llama3Rope = "llama3"
)

// Kind returns the kind of rope scaling, LinearRope or Llama3Rope; "" if there is none.
func (r *Rotary) Kind() string {
	if r == nil {
		return ""
	}
	name := r.Type
	if name == "" {
		name = r.Legacy
	}
	if name == "default" {
		return ""
	}
	return name
}

// Scaling returns the configuration of rope scaling; nil if there is none.
func (c *Config) Scaling() *Rotary {
	for _, r := range []*Rotary{c.RopeParameters, c.RopeScaling} {
		if r.Kind() != "" {
			return r
		}
	}
	return nil
}

// check adds a violation to v for each unsupported value. field is the path of r in config.json.
func (r *Rotary) check(v *domain.Violations, field string) {
	if r == nil {
		return
	}
	above := func(name string, value float64) {
		v.Require(value > 0 && !math.IsInf(value, 0), field+"."+name, "must be above 0, is %g", value)
	}
	v.Require(r.Partial == 0 || r.Partial == 1, field+".partial_rotary_factor",
		"must be 1, is %g: partial rotary embeddings are not supported", r.Partial)
	switch r.Kind() {
	case "":
	case LinearRope:
		above("factor", r.Factor)
	case Llama3Rope:
		above("factor", r.Factor)
		above("low_freq_factor", r.LowFreqFactor)
		above("original_max_position_embeddings", float64(r.OriginalPositions))
		v.Require(r.HighFreqFactor > r.LowFreqFactor, field+".high_freq_factor", "must be above low_freq_factor, is %g",
			r.HighFreqFactor)
	default:
		v.Add(field+".rope_type", "must be %s, %s or default, is %q", LinearRope, Llama3Rope, r.Kind())
	}
}

// window returns the sliding window of attention in tokens; 0 if attention is full.
func (c *Config) window() int {
	if c.UseSlidingWindow != nil && !*c.UseSlidingWindow || c.SlidingWindow == nil {
		return 0
	}
	// only Mistral's files enable the sliding window by default
	if c.UseSlidingWindow == nil && c.ModelType != "mistral" {
		return 0
	}
	return *c.SlidingWindow
}
