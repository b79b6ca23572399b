package tinker

import (
	"encoding/json"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/engines"
)

// A ModelInput is the input of a model.
type ModelInput struct {
	Chunks []Chunk `json:"chunks"`
}

// NewModelInput returns the input that consists of tokens.
func NewModelInput(tokens ...int32) ModelInput {
	return ModelInput{Chunks: []Chunk{{Type: EncodedText, Tokens: tokens}}}
}

// A ChunkType is the type of a chunk.
type ChunkType string

// The types of chunks. Models of this server accept EncodedText only.
const (
	EncodedText       ChunkType = "encoded_text"
	Image             ChunkType = "image"
	ImageAssetPointer ChunkType = "image_asset_pointer"
	DMel              ChunkType = "dmel" // audio
)

// A Chunk is a part of a model input.
type Chunk struct {
	Type           ChunkType `json:"type"`
	Tokens         []int32   `json:"tokens,omitempty"`          // of EncodedText
	Data           []byte    `json:"data,omitempty"`            // of Image
	Format         string    `json:"format,omitempty"`          // of Image and ImageAssetPointer
	ExpectedTokens *int32    `json:"expected_tokens,omitempty"` // of Image and ImageAssetPointer
	Location       string    `json:"location,omitempty"`        // of ImageAssetPointer
	DMel           []byte    `json:"dmel,omitempty"`            // of DMel
}

// chunkField maps a field that only one type of chunk has to that type.
var chunkField = map[string]ChunkType{"tokens": EncodedText, "data": Image, "location": ImageAssetPointer, "dmel": DMel}

// decodeValue decodes a chunk. Older clients leave the type out; the fields then decide.
func (c *Chunk) decodeValue(v *domain.Violations, raw json.RawMessage, path string) {
	var given map[string]json.RawMessage
	if !decodeLeaf(v, raw, &given, path) {
		return
	}
	type plain Chunk
	decodeInto(v, raw, (*plain)(c), path)
	if c.Type != "" {
		return
	}
	var types []string
	for field, of := range chunkField {
		if !isNull(given[field]) {
			types = append(types, string(of))
		}
	}
	slices.Sort(types)
	if len(types) != 1 {
		v.Add(path+".type", "is required: the fields are those of %d types of chunks (%s)", len(types),
			strings.Join(types, ", "))
		return
	}
	c.Type = ChunkType(types[0])
}

// tokens returns the tokens of the input, and adds violations if it has chunks of other types.
func (m *ModelInput) tokens(v *domain.Violations, path string) []int32 {
	v.Require(len(m.Chunks) <= MaxChunks, path+".chunks", "must have at most %d chunks, has %d", MaxChunks, len(m.Chunks))
	n := 0
	for i := range m.Chunks[:min(len(m.Chunks), MaxChunks)] {
		c := &m.Chunks[i]
		v.Require(c.Type == EncodedText, index(path+".chunks", i), "must have the type %q, has %s: the models of this "+
			"server accept no images and no audio", EncodedText, quote(string(c.Type)))
		n += len(c.Tokens)
	}
	if n == 0 || n > MaxTokens {
		v.Add(path, "must have 1 to %d tokens, has %d", MaxTokens, n)
		return nil
	}
	if len(m.Chunks) == 1 {
		return checkTokens(v, path, m.Chunks[0].Tokens)
	}
	all := make([]int32, 0, n)
	for i := range m.Chunks {
		all = append(all, m.Chunks[i].Tokens...)
	}
	return checkTokens(v, path, all)
}

// checkTokens requires that tokens are not negative. The engine knows the vocabulary.
func checkTokens(v *domain.Violations, path string, tokens []int32) []int32 {
	for i, token := range tokens {
		if token < 0 {
			v.Add(path, "token %d must be 0 or more, is %d", i, token)
			break
		}
	}
	return tokens
}

// A Datum is one sequence of a pass, with the inputs of its loss by name.
type Datum struct {
	ModelInput   ModelInput        `json:"model_input"`
	LossFnInputs map[string]Tensor `json:"loss_fn_inputs"`
}

// The inputs of losses.
const (
	TargetTokens = "target_tokens" // target_tokens[i] follows token i of the input
	Weights      = "weights"
	Advantages   = "advantages"
	Logprobs     = "logprobs" // log-probabilities of the targets under the policy that sampled them
)

// ElementwiseLoss is the output with the losses of the targets, besides Logprobs.
const ElementwiseLoss = "elementwise_loss"

// A ForwardBackwardInput is the input of a pass.
type ForwardBackwardInput struct {
	Data         []Datum            `json:"data"`
	LossFn       string             `json:"loss_fn"`
	LossFnConfig map[string]float64 `json:"loss_fn_config,omitempty"`
}

// The settings of losses.
const (
	ClipLow  = "clip_low_threshold"
	ClipHigh = "clip_high_threshold"
	Beta     = "beta"
)

// A ForwardBackwardRequest requests a pass.
type ForwardBackwardRequest struct {
	ModelID     string
	SeqID       int64 // number of the operation in its run, from 1
	Input       ForwardBackwardInput
	ForwardOnly bool // the pass computes no gradients

	pass *engines.TrainPass // of Input, if DecodePass has converted it
}

// passJSON is the JSON form of a ForwardBackwardRequest, which clients before 0.25 send.
type passJSON struct {
	ModelID      string                `json:"model_id"`
	SeqID        *int64                `json:"seq_id,omitempty"`
	Input        *ForwardBackwardInput `json:"forward_backward_input,omitempty"`
	ForwardInput *ForwardBackwardInput `json:"forward_input,omitempty"`
	ForwardOnly  bool                  `json:"forward_only,omitempty"`
}

// MarshalJSON returns the form that older clients send.
func (r ForwardBackwardRequest) MarshalJSON() ([]byte, error) {
	form := passJSON{ModelID: r.ModelID, SeqID: &r.SeqID}
	if r.ForwardOnly {
		form.ForwardInput = &r.Input
	} else {
		form.Input = &r.Input
	}
	return json.Marshal(form)
}

// DecodePass decodes and validates the JSON or protobuf body of a pass. forward reports whether it
// was sent to the operation "forward", which older clients use. The error has all violations.
func DecodePass(contentType string, body []byte, forward bool) (ForwardBackwardRequest, error) {
	var r ForwardBackwardRequest
	if mediaType(contentType) == ContentTypeProtobuf {
		if err := r.unmarshal(body); err != nil {
			return r, err
		}
		r.ForwardOnly = r.ForwardOnly || forward
		return r, r.check()
	}
	var v domain.Violations
	var form passJSON
	if err := decodeObject(&v, body, &form); err != nil {
		return r, err
	}
	input, field, other := form.Input, "forward_backward_input", form.ForwardInput
	if forward {
		input, field, other = form.ForwardInput, "forward_input", form.Input
	}
	v.Require(input != nil, field, "is required")
	v.Require(other == nil, field, "must be the only input of the request")
	if err := v.Err(); err != nil {
		return r, err
	}
	r = ForwardBackwardRequest{ModelID: form.ModelID, SeqID: valueOf(form.SeqID, 0), Input: *input,
		ForwardOnly: forward || form.ForwardOnly}
	return r, r.check()
}

// mediaType returns a Content-Type without parameters.
func mediaType(contentType string) string {
	media, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(media))
}

func (r *ForwardBackwardRequest) check() error {
	var v domain.Violations
	checkModel(&v, r.ModelID)
	checkSeq(&v, "seq_id", &r.SeqID, 1)
	pass := r.Input.pass(&v)
	r.pass = &pass
	return v.Err()
}

// WireBytes returns the estimated size of the datum in protobuf, by which clients divide their
// data: 4 bytes for each token, and the bytes of the values and indices of tensors.
func (d *Datum) WireBytes() int {
	n := 0
	for i := range d.ModelInput.Chunks {
		c := &d.ModelInput.Chunks[i]
		n += 4*len(c.Tokens) + len(c.Data) + len(c.DMel) + len(c.Location)
	}
	for _, t := range d.LossFnInputs {
		n += 4*len(t.Floats) + 8*len(t.Ints)
		if t.Sparse != nil {
			n += 8 * (len(t.Sparse.Rows) + len(t.Sparse.Cols))
		}
	}
	return n
}
