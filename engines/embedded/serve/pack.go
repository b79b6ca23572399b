package serve

import (
	"math"
	"slices"

	stored "anneal/domain/weights"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/safetensors"
)

type packedLayer struct {
	attnNorm, mlpNorm    []float32
	qNorm, kNorm         []float32 // weights of the head norms; nil in a model without them
	qkv, o, gateUp, down kernel.Packed
	bias                 [4][]float32 // biases by llama.Input; nil if there are none
}

// newDecoder packs a model's weights for package kernel. window is the maximum number of tokens of
// a sequence. The decoder does not refer to the source's memory.
func newDecoder(from llama.Source, c llama.Config, window, workers int) (*decoder, error) {
	d := &decoder{
		config: c, rope: llama.NewRope(&c, window), workers: workers, embed: new(kernel.Packed),
		layers: make([]packedLayer, c.Layers), scores: make([]kernel.Matrix, workers),
	}
	embed, err := from.Embedding()
	if err != nil {
		return nil, err
	}
	pack(d.embed, embed, nil)
	for i := range d.layers {
		part, err := from.Layer(i)
		if err != nil {
			return nil, err
		}
		d.layers[i].take(part, workers)
	}
	norm, err := from.Norm()
	if err != nil {
		return nil, err
	}
	d.norm, d.head = slices.Clone(norm), d.embed
	if !c.TieWordEmbeddings {
		head, err := from.Head()
		if err != nil {
			return nil, err
		}
		d.head = new(kernel.Packed)
		pack(d.head, head, nil)
	}
	return d, nil
}

// netDecoder returns a decoder that shares the base model's weights in memory with a net.
func netDecoder(net *llama.Net, window, workers int) *decoder {
	w := net.Weights
	d := &decoder{
		config: w.Config, rope: llama.NewRope(&w.Config, window), workers: workers, table: w.Embed,
		layers: make([]packedLayer, w.Config.Layers), scores: make([]kernel.Matrix, workers), norm: w.Norm, head: net.Head(),
	}
	for i := range d.layers {
		from, packed := &w.Layers[i], net.Projections(i)
		d.layers[i] = packedLayer{
			attnNorm: from.AttnNorm, mlpNorm: from.MLPNorm, qNorm: from.QNorm, kNorm: from.KNorm,
			qkv: *packed[llama.ToQueryKeyValue], o: *packed[llama.ToOutput], gateUp: *packed[llama.ToGateUp],
			down: *packed[llama.ToDown], bias: from.Bias,
		}
	}
	return d
}

// sharing returns another decoder with the same weights, which uses workers goroutines. d must not
// have executed a step yet. The two decoders can execute steps concurrently.
func (d *decoder) sharing(workers int) *decoder {
	other := *d
	other.workers, other.scores = workers, make([]kernel.Matrix, workers)
	return &other
}

func (l *packedLayer) take(from llama.StoredLayer, workers int) {
	l.attnNorm, l.mlpNorm = slices.Clone(from.AttnNorm), slices.Clone(from.MLPNorm)
	l.qNorm, l.kNorm = slices.Clone(from.QNorm), slices.Clone(from.KNorm)
	for input, bias := range from.Bias {
		l.bias[input] = slices.Clone(bias)
	}
	to := [...]*kernel.Packed{&l.qkv, &l.o, &l.gateUp, &l.down}
	kernel.Each(len(to), workers, func(_, input int) { pack(to[input], from.Stacks[input], from.Quantized[input]) })
}

// pack packs the weights w [out, in] in the narrowest lossless format, because a step of few rows
// is memory bound and needs half the time for half the bytes. If q is not nil, it packs the
// quantized values. Other weights become bfloat16, binary16 or float32, whose products are
// bit-identical.
func pack(to *kernel.Packed, w kernel.Matrix, q *llama.Quantized) {
	w.Data = w.Data[:w.Rows*w.Cols]
	switch {
	case q != nil && q.Type == safetensors.F8:
		to.PackTE4M3(q.Values, q.Scales, w.Rows, w.Cols)
	case q != nil:
		signed := make([]int8, len(q.Values))
		for i, v := range q.Values {
			signed[i] = int8(v)
		}
		to.PackTInt8(signed, q.Scales, w.Rows, w.Cols)
	case !slices.ContainsFunc(w.Data, func(v float32) bool { return math.Float32bits(v)&0xffff != 0 }):
		halves := make([]uint16, len(w.Data))
		kernel.RoundBF16(halves, w.Data)
		to.PackTBF16(halves, w.Rows, w.Cols)
	default:
		if halves := binary16(w.Data); halves != nil {
			to.PackTF16(halves, w.Rows, w.Cols)
			return
		}
		to.PackT(w)
	}
}

// binary16 converts numbers to IEEE 754 binary16. It returns nil if a number is not representable.
func binary16(numbers []float32) []uint16 {
	const atOnce = 4096 // the first block of so many values already fails for most models in another format
	var halves []uint16
	for lo := 0; lo < len(numbers); lo += atOnce {
		some := numbers[lo:min(lo+atOnce, len(numbers))]
		if slices.ContainsFunc(some, func(v float32) bool { return stored.FromHalf(stored.ToHalf(v)) != v }) {
			return nil
		}
		if halves == nil {
			halves = make([]uint16, 0, len(numbers))
		}
		for _, v := range some {
			halves = append(halves, stored.ToHalf(v))
		}
	}
	return halves
}
