package llama

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"anneal/domain"
)

// A Config has the supported fields of a Hugging Face config.json. Validate rejects unsupported
// values.
type Config struct {
	Architectures     []string `json:"architectures"`
	ModelType         string   `json:"model_type"`
	HiddenSize        int      `json:"hidden_size"`
	IntermediateSize  int      `json:"intermediate_size"`
	Layers            int      `json:"num_hidden_layers"`
	Heads             int      `json:"num_attention_heads"`
	KVHeads           int      `json:"num_key_value_heads"`
	HeadDim           int      `json:"head_dim"`
	VocabSize         int      `json:"vocab_size"`
	MaxPositions      int      `json:"max_position_embeddings"` // context length, at most the sliding window
	NormEps           float64  `json:"rms_norm_eps"`
	RopeTheta         float64  `json:"rope_theta"`
	RopeScaling       *Rotary  `json:"rope_scaling,omitempty"`
	RopeParameters    *Rotary  `json:"rope_parameters,omitempty"` // rotary embedding in the notation of newer files
	PartialRotary     float64  `json:"partial_rotary_factor,omitempty"`
	SlidingWindow     *int     `json:"sliding_window,omitempty"`
	UseSlidingWindow  *bool    `json:"use_sliding_window,omitempty"`
	TieWordEmbeddings bool     `json:"tie_word_embeddings"`
	AttentionBias     bool     `json:"attention_bias"`
	MLPBias           bool     `json:"mlp_bias"`
	HiddenAct         string   `json:"hidden_act"`
	InitializerRange  float64  `json:"initializer_range"`
	// TorchDType is the number format of the weights: float32, bfloat16 or float16.
	TorchDType string `json:"torch_dtype"`
	// DType is the name of torch_dtype in newer files, whose value is copied to TorchDType.
	DType string   `json:"dtype,omitempty"`
	BOS   *int     `json:"bos_token_id,omitempty"`
	EOS   TokenIDs `json:"eos_token_id,omitempty"`
}

// TokenIDs are one or several token IDs. In config.json they are a number or a list.
type TokenIDs []int

// UnmarshalJSON accepts a number, a list of numbers or null.
func (t *TokenIDs) UnmarshalJSON(data []byte) error {
	var one *int
	if err := json.Unmarshal(data, &one); err == nil {
		*t = nil
		if one != nil {
			*t = TokenIDs{*one}
		}
		return nil
	}
	var many []int
	if err := json.Unmarshal(data, &many); err != nil {
		return fmt.Errorf("eos_token_id must be a token ID or a list of token IDs: %w", err)
	}
	*t = many
	return nil
}

// MarshalJSON writes a single token ID as a number, several as a list.
func (t TokenIDs) MarshalJSON() ([]byte, error) {
	if len(t) == 1 {
		return json.Marshal(t[0])
	}
	return json.Marshal([]int(t))
}

const maxConfigBytes = 1 << 20

// ReadConfig reads dir/config.json. It returns FailedPrecondition if the file is missing or
// invalid, or if this package does not support the model.
func ReadConfig(dir string) (Config, error) {
	path := filepath.Join(dir, "config.json")
	data, err := readLimited(path, maxConfigBytes)
	if err != nil {
		return Config{}, err
	}
	c := Config{NormEps: 1e-6, RopeTheta: 10000, HiddenAct: "silu", MaxPositions: 2048}
	if err := json.Unmarshal(data, &c); err != nil {
		return Config{}, domain.Errorf(domain.FailedPrecondition, "parse config.json: %v", err)
	}
	c.fill()
	return c, c.Validate()
}

// fill sets the defaults of optional fields.
func (c *Config) fill() {
	if c.KVHeads == 0 {
		c.KVHeads = c.Heads
	}
	if c.HeadDim == 0 && c.Heads > 0 {
		c.HeadDim = c.HiddenSize / c.Heads
	}
	if r := c.RopeParameters; r != nil && r.Theta > 0 {
		c.RopeTheta = r.Theta
	}
	if c.TorchDType == "" {
		c.TorchDType = c.DType
	}
	if c.DType = ""; c.TorchDType == "" {
		c.TorchDType = "float32"
	}
	// The engine computes only full attention. That equals sliding-window attention for contexts up
	// to the size of the window, so the window limits the context length.
	if reach := c.window(); reach > 0 {
		c.MaxPositions = min(c.MaxPositions, reach)
	}
}

// Validate returns a FailedPrecondition error with all violations if this package does not support
// the model.
func (c *Config) Validate() error {
	var v domain.Violations
	within := func(field string, value, min, max int) {
		v.Require(value >= min && value <= max, field, "must be %d to %d, is %d", min, max, value)
	}
	v.Require(families[c.ModelType] != "", "model_type",
		"is %q, but the embedded engine runs llama, mistral, qwen2 and qwen3", c.ModelType)
	within("hidden_size", c.HiddenSize, 1, 1<<16)
	within("intermediate_size", c.IntermediateSize, 1, 1<<18)
	within("num_hidden_layers", c.Layers, 1, 1<<10)
	within("num_attention_heads", c.Heads, 1, 1<<10)
	within("num_key_value_heads", c.KVHeads, 1, 1<<10)
	within("head_dim", c.HeadDim, 2, 1<<10)
	within("vocab_size", c.VocabSize, 1, 1<<20)
	within("max_position_embeddings", c.MaxPositions, 1, 1<<21)
	v.Require(c.HeadDim%2 == 0, "head_dim", "must be even, is %d", c.HeadDim)
	v.Require(c.KVHeads < 1 || c.Heads%c.KVHeads == 0, "num_key_value_heads",
		"must divide num_attention_heads (%d), is %d", c.Heads, c.KVHeads)
	v.Require(c.NormEps > 0, "rms_norm_eps", "must be above 0, is %g", c.NormEps)
	v.Require(c.RopeTheta > 0, "rope_theta", "must be above 0, is %g", c.RopeTheta)
	c.RopeScaling.check(&v, "rope_scaling")
	c.RopeParameters.check(&v, "rope_parameters")
	v.Require(c.PartialRotary == 0 || c.PartialRotary == 1, "partial_rotary_factor",
		"must be 1, is %g: partial rotary embeddings are not supported", c.PartialRotary)
	v.Require(c.HiddenAct == "silu", "hidden_act", "must be silu, is %q", c.HiddenAct)
	v.Require(
		c.TorchDType == "float32" || c.TorchDType == "bfloat16" || c.TorchDType == "float16" || c.TorchDType == "",
		"torch_dtype",
		"must be float32, bfloat16 or float16, is %q: convert the model first", c.TorchDType)
	if err := v.Err(); err != nil {
		f := err.(*domain.Error)
		return &domain.Error{Code: domain.FailedPrecondition, Reason: "UNSUPPORTED_MODEL",
			Message: "config.json: " + f.Message, Violations: f.Violations}
	}
	return nil
}

// Parameters returns the number of parameters. Tied embeddings count once.
func (c *Config) Parameters() int64 {
	h := int64(c.HiddenSize)
	n := int64(c.VocabSize)*h + h + int64(c.Layers)*int64(c.layerParameters())
	if !c.TieWordEmbeddings {
		n += int64(c.VocabSize) * h
	}
	return n
}

func (c *Config) layerParameters() int {
	h, q, kv, f := c.HiddenSize, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim, c.IntermediateSize
	n := 2*h + 2*q*h + 2*kv*h + 3*f*h
	for input := range inputs {
		n += c.biases(Input(input))
	}
	if c.HeadNorms() {
		n += 2 * c.HeadDim
	}
	return n
}

// readLimited returns the content of a file, or an error if it has more than limit bytes.
func readLimited(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if os.IsNotExist(err) {
		return nil, domain.Errorf(domain.FailedPrecondition, "%s is missing from the model directory", filepath.Base(path))
	}
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, domain.Errorf(domain.FailedPrecondition, "%s has %d bytes, more than the limit of %d",
			filepath.Base(path), info.Size(), limit)
	}
	return os.ReadFile(path)
}
