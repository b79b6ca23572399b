package llama

import (
	"slices"

	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/safetensors"
)

// A Source returns a model's parameters. Its methods must be called in the order of Weights:
// embeddings, layers, final norm, and the head unless it is tied. A result is valid until the next
// call.
type Source interface {
	Embedding() (kernel.Matrix, error)
	Layer(i int) (StoredLayer, error)
	Norm() ([]float32, error)
	Head() (kernel.Matrix, error)
}

// A StoredLayer has the parameters of one layer as float32, and the quantized values of projections
// that are stored in 8 bits.
type StoredLayer struct {
	Layer
	Stacks [len(inputs)]kernel.Matrix // projections of each Input, as one matrix
	// Quantized values of each matrix in Stacks; nil if its projections are not stored in 8 bits.
	Quantized [len(inputs)]*Quantized
}

// Quantized is a dense matrix of 8-bit values. An element is the value times the scale of its row.
type Quantized struct {
	Type   safetensors.DType // type of the values, F8 or I8
	Values []byte
	Scales []float32
}

// Source returns the weights as a Source, which never returns an error.
func (w *Weights) Source() Source { return inMemory{w} }

type inMemory struct{ w *Weights }

func (m inMemory) Embedding() (kernel.Matrix, error) { return m.w.Embed, nil }
func (m inMemory) Norm() ([]float32, error)          { return m.w.Norm, nil }
func (m inMemory) Head() (kernel.Matrix, error)      { return m.w.Head, nil }
func (m inMemory) Layer(i int) (StoredLayer, error) {
	return StoredLayer{Layer: m.w.Layers[i], Stacks: m.w.stacks(i)}, nil
}

// A Reader is a Source that reads a Hugging Face directory step by step: only one layer, or the
// embeddings, is in memory as float32 at a time.
type Reader struct {
	Config  Config
	file    *safetensors.Shards
	adapter *Adapter // adapter that Layer merges into each layer; nil for none
	hash    *hasher
	buffer  []float32
}

// Open opens a model directory that Load can load. The caller must close the reader.
func Open(dir string) (*Reader, error) {
	c, file, err := openFiles(dir)
	if err != nil {
		return nil, err
	}
	return &Reader{Config: c, file: file, hash: c.hash()}, nil
}

// Close closes the files.
func (r *Reader) Close() error { return r.file.Close() }

// Merge makes Layer return layers into which an adapter is merged.
func (r *Reader) Merge(a *Adapter) { r.adapter = a }

// Hash returns Weights.Hash of the model without an adapter. All parameters must have been read
// before.
func (r *Reader) Hash() string { return r.hash.name() }

// Embedding implements Source.
func (r *Reader) Embedding() (kernel.Matrix, error) { return r.matrix(embedName) }

// Head implements Source.
func (r *Reader) Head() (kernel.Matrix, error) { return r.matrix(headName) }

func (r *Reader) matrix(name string) (kernel.Matrix, error) {
	m := view(r.values(r.Config.VocabSize*r.Config.HiddenSize), r.Config.VocabSize, r.Config.HiddenSize)
	return m, r.read(m.Data, tensorOf(name, m, safetensors.F32))
}

// Norm implements Source.
func (r *Reader) Norm() ([]float32, error) {
	norm := r.values(r.Config.HiddenSize)
	return norm, r.read(norm, vectorOf(normName, norm, safetensors.F32))
}

// Layer implements Source.
func (r *Reader) Layer(i int) (p StoredLayer, err error) {
	flat := r.values(r.Config.layerParameters())
	rest := values(flat)
	p.Layer, p.Stacks = r.Config.layOutLayer(&rest)
	if err := r.read(flat, r.Config.tensors(i, &p.Layer, safetensors.F32)...); err != nil {
		return p, err
	}
	if r.adapter != nil {
		r.adapter.mergeLayer(i, &p.Layer)
		return p, nil
	}
	for input := range inputs {
		if p.Quantized[input], err = r.quantized(i, Input(input)); err != nil {
			return p, err
		}
	}
	return p, nil
}

// read reads the tensors, which are parts of flat, and adds flat to the hash of the model.
func (r *Reader) read(flat []float32, tensors ...safetensors.Tensor) error {
	if err := readAll(r.file, tensors); err != nil {
		return err
	}
	r.hash.add(flat)
	return nil
}

func (r *Reader) values(n int) []float32 {
	if cap(r.buffer) < n {
		r.buffer = make([]float32, n)
	}
	return r.buffer[:n]
}

// quantized returns the quantized values of the projections of an input. It returns nil if the
// projections are not all stored in the same 8-bit type, or if a value is NaN.
func (r *Reader) quantized(layer int, input Input) (*Quantized, error) {
	kind, all := r.stored(layer, input)
	if !kind.Eight() {
		return nil, nil
	}
	c := &Quantized{Type: kind, Values: make([]byte, all)}
	rest := c.Values
	for _, m := range inputs[input] {
		out, in := m.Shape(&r.Config)
		scales, err := r.file.ReadQuantized(rest[:out*in], projection(layer, m))
		if err != nil {
			return nil, err
		}
		c.Scales, rest = append(c.Scales, scales...), rest[out*in:]
	}
	if kind == safetensors.F8 && slices.ContainsFunc(c.Values, func(v byte) bool { return v&0x7f == 0x7f }) {
		return nil, nil // the kernels' 8-bit formats cannot represent NaN, so the float32 values are packed instead
	}
	return c, nil
}

// stored returns the type in which the projections of an input are stored, and the number of their
// values. kind is "" if the types differ.
func (r *Reader) stored(layer int, input Input) (kind safetensors.DType, all int) {
	for i, m := range inputs[input] {
		out, in := m.Shape(&r.Config)
		info, _ := r.file.Lookup(projection(layer, m))
		if all += out * in; i == 0 {
			kind = info.DType
		} else if kind != info.DType {
			kind = ""
		}
	}
	return kind, all
}
