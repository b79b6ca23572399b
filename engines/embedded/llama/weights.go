// Package llama implements the Llama architecture in float32, including the variants of
// Mistral, Qwen2 and Qwen3: configuration and weights in the Hugging Face format, LoRA adapters
// in the PEFT format, and training passes (forward to log-probabilities per token, and backward
// from the gradient of an objective).
package llama

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash"
	"math"
	"math/rand/v2"

	"anneal/engines/embedded/kernel"
)

// A Layer has the parameters of a decoder layer. Projections have the layout [out, in].
type Layer struct {
	AttnNorm       []float32
	Q, K, V, O     kernel.Matrix
	QNorm, KNorm   []float32 // weights of the head norms of queries and keys; nil in a model without head norms
	MLPNorm        []float32
	Gate, Up, Down kernel.Matrix
	Bias           [len(inputs)][]float32 // biases of the projections of each Input, stacked; nil without biases
}

// Weights are the parameters of a model in one slice, in this order: embeddings, layers (AttnNorm Q
// K V O, their biases, QNorm KNorm, MLPNorm Gate Up Down, their biases), final norm, head. So Q, K
// and V can be multiplied as one matrix, as can Gate and Up, and an optimizer processes one vector.
type Weights struct {
	Config Config
	Embed  kernel.Matrix // embeddings [vocab, hidden]
	Layers []Layer
	Norm   []float32
	Head   kernel.Matrix // shares the memory of Embed if the embeddings are tied

	flat        []float32
	qkv, gateUp []kernel.Matrix
}

// NewWeights returns weights of zeros for a valid configuration.
func NewWeights(c Config) *Weights {
	flat := make([]float32, c.Parameters())
	return layOut(c, flat)
}

// layOut divides flat, which has c.Parameters() values, into the matrices and vectors of the
// weights.
func layOut(c Config, flat []float32) *Weights {
	w := &Weights{Config: c, flat: flat, Layers: make([]Layer, c.Layers)}
	rest := values(flat)
	w.Embed = rest.matrix(c.VocabSize, c.HiddenSize)
	for i := range w.Layers {
		l, stacks := c.layOutLayer(&rest)
		w.Layers[i], w.qkv, w.gateUp = l, append(w.qkv, stacks[ToQueryKeyValue]), append(w.gateUp, stacks[ToGateUp])
	}
	w.Norm = rest.vector(c.HiddenSize)
	w.Head = w.Embed
	if !c.TieWordEmbeddings {
		w.Head = rest.matrix(c.VocabSize, c.HiddenSize)
	}
	return w
}

// layOutLayer takes the parameters of one layer from rest. It returns the layer, and the stacked
// projections of each Input.
func (c *Config) layOutLayer(rest *values) (l Layer, stacks [len(inputs)]kernel.Matrix) {
	bias := func(input Input) []float32 {
		if n := c.biases(input); n > 0 {
			return rest.vector(n)
		}
		return nil
	}
	h, q, kv, f := c.HiddenSize, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim, c.IntermediateSize
	l.AttnNorm = rest.vector(h)
	stacks[ToQueryKeyValue] = view(*rest, q+2*kv, h)
	l.Q, l.K, l.V, l.O = rest.matrix(q, h), rest.matrix(kv, h), rest.matrix(kv, h), rest.matrix(h, q)
	l.Bias[ToQueryKeyValue], l.Bias[ToOutput] = bias(ToQueryKeyValue), bias(ToOutput)
	if c.HeadNorms() {
		l.QNorm, l.KNorm = rest.vector(c.HeadDim), rest.vector(c.HeadDim)
	}
	l.MLPNorm = rest.vector(h)
	stacks[ToGateUp] = view(*rest, 2*f, h)
	l.Gate, l.Up, l.Down = rest.matrix(f, h), rest.matrix(f, h), rest.matrix(h, f)
	l.Bias[ToGateUp], l.Bias[ToDown] = bias(ToGateUp), bias(ToDown)
	stacks[ToOutput], stacks[ToDown] = l.O, l.Down
	return l, stacks
}

// values is the part of a vector that layOut has not assigned yet.
type values []float32

func (v *values) vector(n int) []float32 {
	taken := (*v)[:n:n]
	*v = (*v)[n:]
	return taken
}

func (v *values) matrix(rows, cols int) kernel.Matrix { return view(v.vector(rows*cols), rows, cols) }

// view returns the matrix [rows, cols] at the beginning of data.
func view(data []float32, rows, cols int) kernel.Matrix {
	return kernel.Matrix{Data: data[:rows*cols], Rows: rows, Cols: cols, Stride: cols}
}

// Flat returns all parameters as one vector, in the order that Weights documents.
func (w *Weights) Flat() []float32 { return w.flat }

// Clone returns a copy of the weights.
func (w *Weights) Clone() *Weights {
	return layOut(w.Config, append([]float32(nil), w.flat...))
}

// QKV returns the stacked Q, K and V of a layer, [q+2kv, hidden], which share the memory of the
// weights.
func (w *Weights) QKV(layer int) kernel.Matrix { return w.qkv[layer] }

// GateUp returns the stacked Gate and Up of a layer, [2·ffn, hidden], which share the memory of the
// weights.
func (w *Weights) GateUp(layer int) kernel.Matrix { return w.gateUp[layer] }

// Initialize draws projections and embeddings from a normal distribution with the standard
// deviation InitializerRange, or 0.02 if that is 0. For the two projections that write to the
// residual stream, it divides the standard deviation by sqrt(2·layers), as GPT-2 does. It sets
// norms to 1 and biases to 0.
func (w *Weights) Initialize(seed uint64) {
	std := w.Config.InitializerRange
	if std == 0 {
		std = 0.02
	}
	rng := rand.New(rand.NewPCG(seed, 0x6c6c616d61))
	draw := func(m kernel.Matrix, std float64) {
		for i := range m.Data {
			m.Data[i] = float32(rng.NormFloat64() * std)
		}
	}
	one := func(v []float32) {
		for i := range v {
			v[i] = 1
		}
	}
	residual := std / math.Sqrt(2*float64(w.Config.Layers))
	draw(w.Embed, std)
	for i := range w.Layers {
		l := &w.Layers[i]
		one(l.AttnNorm)
		one(l.MLPNorm)
		one(l.QNorm)
		one(l.KNorm)
		for _, bias := range l.Bias {
			clear(bias)
		}
		for _, m := range []kernel.Matrix{l.Q, l.K, l.V, l.Gate, l.Up} {
			draw(m, std)
		}
		draw(l.O, residual)
		draw(l.Down, residual)
	}
	one(w.Norm)
	if !w.Config.TieWordEmbeddings {
		draw(w.Head, std)
	}
}

// Hash identifies the weights: the SHA-256 of the bits of all parameters and of the configuration
// fields that affect the result. It is the same for all storage formats that are lossless.
func (w *Weights) Hash() string {
	h := w.Config.hash()
	h.add(w.flat)
	return h.name()
}

// A hasher computes Weights.Hash step by step. Parameters must be added in the order of Flat.
type hasher struct {
	sum hash.Hash
	buf []byte
}

func (c *Config) hash() *hasher {
	h := &hasher{sum: sha256.New(), buf: make([]byte, 0, 1<<16)}
	put := func(v uint64) { _ = binary.Write(h.sum, binary.LittleEndian, v) }
	for _, n := range []int{c.HiddenSize, c.IntermediateSize, c.Layers, c.Heads, c.KVHeads, c.HeadDim, c.VocabSize} {
		put(uint64(n))
	}
	put(math.Float64bits(c.NormEps))
	put(math.Float64bits(c.RopeTheta))
	if c.ModelType != llamaType {
		h.sum.Write([]byte(c.ModelType))
	}
	if r := c.Scaling(); r != nil {
		_ = json.NewEncoder(h.sum).Encode(r)
	}
	return h
}

func (h *hasher) add(parameters []float32) {
	for _, v := range parameters {
		h.buf = binary.LittleEndian.AppendUint32(h.buf, math.Float32bits(v))
		if len(h.buf) == cap(h.buf) {
			h.sum.Write(h.buf)
			h.buf = h.buf[:0]
		}
	}
}

func (h *hasher) name() string {
	h.sum.Write(h.buf)
	h.buf = h.buf[:0]
	return "sha256:" + hex.EncodeToString(h.sum.Sum(nil))
}
