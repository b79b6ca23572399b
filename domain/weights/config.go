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

// Config is what a config.json says of a model's shape. Zero is what it does
// not say.
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
	Text             *Config         `json:"text_config"` // of models that also see or hear
}

// Bounds of small files, in bytes.
const (
	maxConfig    = 4 << 20
	maxTokenizer = 64 << 20
	maxIndex     = 64 << 20
)

// readJSON reads a small file into out. IsBroken holds for what is its owner's
// to mend.
func (f Folder) readJSON(name string, limit int64, out any) error {
	size, ok := f.Sizes[name]
	switch {
	case !ok:
		return brokenf("is missing")
	case size > limit:
		return brokenf("has %d bytes: at most %d are read", size, limit)
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
		return brokenf("cannot be read: %s", jsonTrouble(err))
	}
	return nil
}

// jsonTrouble is where a JSON text is wrong, without repeating the text.
func jsonTrouble(err error) string {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Sprintf("it is not JSON, from byte %d on", syntax.Offset)
	case errors.As(err, &kind) && kind.Field != "":
		return fmt.Sprintf("%s must not be a JSON %s", kind.Field, kind.Value)
	case errors.As(err, &kind):
		return fmt.Sprintf("it must not be a JSON %s", kind.Value)
	}
	return "it has another form than such a file"
}

// ReadConfig reads config.json and derives what it may leave out.
func (f Folder) ReadConfig() (Config, error) {
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

// families are the model types whose tensors are known by name and shape.
var families = []string{"llama", "mistral", "qwen2", "qwen3"}

// knows tells whether the shapes of the model's tensors follow from the
// configuration. Those of quantised weights do not.
func (c *Config) knows() bool {
	return slices.Contains(families, c.ModelType) && (len(c.Quantization) == 0 || string(c.Quantization) == "null")
}

// trouble is what keeps the shapes of a known family from being worked out.
func (c *Config) trouble() []string {
	var why []string
	for _, field := range []struct {
		name  string
		value int64
		most  int64
	}{
		{"hidden_size", c.HiddenSize, 1 << 20}, {"intermediate_size", c.IntermediateSize, 1 << 22}, {"num_hidden_layers", c.Layers, 1 << 10},
		{"num_attention_heads", c.Heads, 1 << 12}, {"num_key_value_heads", c.KVHeads, 1 << 12}, {"head_dim", c.HeadDim, 1 << 14},
		{"vocab_size", c.VocabSize, 1 << 24}, {"max_position_embeddings", c.MaxPositions, 1 << 31},
	} {
		if field.value < 1 || field.value > field.most {
			why = append(why, fmt.Sprintf("%s must be 1 to %d, is %d", field.name, field.most, field.value))
		}
	}
	if c.KVHeads > 0 && c.Heads%c.KVHeads != 0 {
		why = append(why, fmt.Sprintf("num_key_value_heads, %d, must divide num_attention_heads, %d", c.KVHeads, c.Heads))
	}
	return why
}

// projections are the matrices [out, in] of a layer, by their path below it.
func (c *Config) projections() map[string][2]int64 {
	h, q, kv, f := c.HiddenSize, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim, c.IntermediateSize
	return map[string][2]int64{"self_attn.q_proj": {q, h}, "self_attn.k_proj": {kv, h}, "self_attn.v_proj": {kv, h}, "self_attn.o_proj": {h, q},
		"mlp.gate_proj": {f, h}, "mlp.up_proj": {f, h}, "mlp.down_proj": {h, f}}
}

// biased tells whether a projection of the family has a bias.
func (c *Config) biased(projection string) bool {
	attention := strings.HasPrefix(projection, "self_attn.")
	if c.ModelType == "qwen2" {
		return attention && projection != "self_attn.o_proj"
	}
	return attention && c.AttentionBias || !attention && c.MLPBias
}

// expected yields the tensors that a model of a known family must have, with
// their shapes.
func (c *Config) expected() iter.Seq2[string, []int64] {
	return func(yield func(string, []int64) bool) {
		ok := yield("model.embed_tokens.weight", []int64{c.VocabSize, c.HiddenSize}) && yield("model.norm.weight", []int64{c.HiddenSize})
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

// embeds tells whether the model makes vectors instead of text.
func (c *Config) embeds(f Folder) bool {
	if _, ok := f.Sizes["modules.json"]; ok { // as sentence-transformers writes
		return true
	}
	for _, a := range c.Architectures {
		if strings.HasSuffix(a, "ForCausalLM") || strings.HasSuffix(a, "ForConditionalGeneration") || strings.HasSuffix(a, "LMHeadModel") {
			return false
		}
	}
	return slices.ContainsFunc(c.Architectures, func(a string) bool { return strings.HasSuffix(a, "Model") })
}
