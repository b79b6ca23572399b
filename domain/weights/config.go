package weights

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
)

// Config holds the fields of a config.json that determine the shapes of a model's tensors. A field
// of 0 is absent from the file.
type Config struct {
	Architectures    []string        `json:"architectures"`
	ModelType        string          `json:"model_type"`
	HiddenSize       int64           `json:"hidden_size"`
	IntermediateSize int64           `json:"intermediate_size"`
	Layers           int64           `json:"num_hidden_layers"`
	Heads            int64           `json:"num_attention_heads"`
	KVHeads          int64           `json:"num_key_value_heads"`
	HeadDim          int64           `json:"head_dim"`
	VocabSize        int64           `json:"vocab_size"`
	MaxPositions     int64           `json:"max_position_embeddings"`
	Tied             bool            `json:"tie_word_embeddings"`
	AttentionBias    bool            `json:"attention_bias"`
	MLPBias          bool            `json:"mlp_bias"`
	Quantization     json.RawMessage `json:"quantization_config"`
	Text             *Config         `json:"text_config"` // configuration of the text part of a multimodal model
	visionConfig
}

// Maximum sizes of JSON files, in bytes.
const (
	maxConfig    = 4 << 20
	maxTokenizer = 64 << 20
	maxIndex     = 64 << 20
)

// readJSON decodes a file of at most limit bytes into out. IsInvalid reports true for an error in
// the file's content.
func (f Directory) readJSON(name string, limit int64, out any) error {
	size, ok := f.Sizes[name]
	switch {
	case !ok:
		return invalidf("is missing")
	case size > limit:
		return invalidf("has %d bytes: at most %d are allowed", size, limit)
	}
	content, err := f.Open(name, 0, -1)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(content, limit))
	if err := errors.Join(err, content.Close()); err != nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return invalidf("cannot be read: %s", jsonError(err))
	}
	return nil
}

// jsonError returns what err says about invalid JSON and where, without repeating any of its text.
func jsonError(err error) string {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Sprintf("the file is not valid JSON at byte %d", syntax.Offset)
	case errors.As(err, &kind) && kind.Field != "":
		return fmt.Sprintf("%s must not be a JSON %s", kind.Field, kind.Value)
	case errors.As(err, &kind):
		return fmt.Sprintf("the file must not be a JSON %s", kind.Value)
	}
	return "the file has a JSON value of a type that is not allowed there"
}

// ReadConfig reads config.json and sets fields that the file may omit to their derived values.
func (f Directory) ReadConfig() (Config, error) {
	var c Config
	if err := f.readJSON("config.json", maxConfig, &c); err != nil {
		return c, err
	}
	if c.KVHeads == 0 {
		c.KVHeads = c.Heads
	}
	if c.HeadDim == 0 && c.Heads > 0 {
		c.HeadDim = c.HiddenSize / c.Heads
	}
	if c.Text != nil && c.MaxPositions == 0 {
		c.MaxPositions = c.Text.MaxPositions
	}
	return c, nil
}

// families are the model types whose tensors have known names and shapes.
var families = []string{"llama", "mistral", "qwen2", "qwen3"}

// isKnownFamily reports whether the configuration determines the shapes of the model's tensors. The
// configuration of quantized weights does not.
func (c *Config) isKnownFamily() bool {
	return slices.Contains(families, c.ModelType) && (len(c.Quantization) == 0 || string(c.Quantization) == "null")
}

// invalidSettings returns why the shapes of a model of a known family cannot be derived from the
// configuration; nil when they can.
func (c *Config) invalidSettings() []string {
	var why []string
	for _, field := range []struct {
		name  string
		value int64
		max   int64
	}{
		{"hidden_size", c.HiddenSize, 1 << 20}, {"intermediate_size", c.IntermediateSize, 1 << 22},
		{"num_hidden_layers", c.Layers, 1 << 10},
		{"num_attention_heads", c.Heads, 1 << 12}, {"num_key_value_heads", c.KVHeads, 1 << 12},
		{"head_dim", c.HeadDim, 1 << 14},
		{"vocab_size", c.VocabSize, 1 << 24}, {"max_position_embeddings", c.MaxPositions, 1 << 31},
	} {
		if field.value < 1 || field.value > field.max {
			why = append(why, fmt.Sprintf("%s is %d, but must be 1 to %d", field.name, field.value, field.max))
		}
	}
	if c.KVHeads > 0 && c.Heads%c.KVHeads != 0 {
		why = append(why, fmt.Sprintf("num_key_value_heads, %d, must divide num_attention_heads, %d", c.KVHeads, c.Heads))
	}
	return why
}

// projections returns the shapes [out, in] of the matrices of a layer, by their path below the
// layer.
func (c *Config) projections() map[string][2]int64 {
	h, q, kv, f := c.HiddenSize, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim, c.IntermediateSize
	return map[string][2]int64{"self_attn.q_proj": {q, h}, "self_attn.k_proj": {kv, h}, "self_attn.v_proj": {kv, h},
		"self_attn.o_proj": {h, q},
		"mlp.gate_proj":    {f, h}, "mlp.up_proj": {f, h}, "mlp.down_proj": {h, f}}
}

// biased reports whether a projection has a bias in models of this family.
func (c *Config) biased(projection string) bool {
	attention := strings.HasPrefix(projection, "self_attn.")
	if c.ModelType == "qwen2" {
		return attention && projection != "self_attn.o_proj"
	}
	return attention && c.AttentionBias || !attention && c.MLPBias
}

// expected yields the names and shapes of the tensors of a model of a known family.
func (c *Config) expected() iter.Seq2[string, []int64] {
	return func(yield func(string, []int64) bool) {
		ok := yield("model.embed_tokens.weight", []int64{c.VocabSize, c.HiddenSize}) &&
			yield("model.norm.weight", []int64{c.HiddenSize})
		if ok && !c.Tied {
			ok = yield("lm_head.weight", []int64{c.VocabSize, c.HiddenSize})
		}
		for i := int64(0); ok && i < c.Layers; i++ {
			ok = c.layer(fmt.Sprintf("model.layers.%d.", i), yield)
		}
	}
}

func (c *Config) layer(prefix string, yield func(string, []int64) bool) bool {
	norms := map[string]int64{"input_layernorm": c.HiddenSize, "post_attention_layernorm": c.HiddenSize}
	if c.ModelType == "qwen3" {
		norms["self_attn.q_norm"], norms["self_attn.k_norm"] = c.HeadDim, c.HeadDim
	}
	for name, size := range norms {
		if !yield(prefix+name+".weight", []int64{size}) {
			return false
		}
	}
	for name, shape := range c.projections() {
		if !yield(prefix+name+".weight", shape[:]) || c.biased(name) && !yield(prefix+name+".bias", shape[:1]) {
			return false
		}
	}
	return true
}

// isEmbedding reports whether the model in f generates embeddings, not text.
func (c *Config) isEmbedding(f Directory) bool {
	if _, ok := f.Sizes["modules.json"]; ok { // only models of sentence-transformers have this file
		return true
	}
	for _, a := range c.Architectures {
		if strings.HasSuffix(a, "ForCausalLM") || strings.HasSuffix(a, "ForConditionalGeneration") ||
			strings.HasSuffix(a, "LMHeadModel") {
			return false
		}
	}
	return slices.ContainsFunc(c.Architectures, func(a string) bool { return strings.HasSuffix(a, "Model") })
}
