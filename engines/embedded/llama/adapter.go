package llama

import (
	"math"
	"math/rand/v2"
	"slices"

	"anneal/engines/embedded/kernel"
)

// A Module is a projection of a decoder layer, which an adapter can modify.
type Module int

// The projections of a decoder layer, in the order in which Weights has them.
const (
	Query Module = iota
	Key
	Value
	Output
	Gate
	Up
	Down
	Modules // number of projections in a layer
)

var moduleNames = [Modules]string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}

// inputs are the modules that are applied to each Input.
var inputs = [4][]Module{{Query, Key, Value}, {Output}, {Gate, Up}, {Down}}

// String returns the module's name in checkpoints, such as q_proj.
func (m Module) String() string { return moduleNames[m] }

// Path returns the module's name within a layer, such as self_attn.q_proj.
func (m Module) Path() string {
	if m < Gate {
		return "self_attn." + m.String()
	}
	return "mlp." + m.String()
}

// ModuleNamed returns the module with a name in checkpoints, such as q_proj; false if there is
// none.
func ModuleNamed(name string) (Module, bool) {
	for m, n := range moduleNames {
		if n == name {
			return Module(m), true
		}
	}
	return 0, false
}

// Shape returns the numbers of outputs and inputs of the module in a model with configuration c.
func (m Module) Shape(c *Config) (out, in int) {
	h, q, kv := c.HiddenSize, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	switch m {
	case Query:
		return q, h
	case Key, Value:
		return kv, h
	case Output:
		return h, q
	case Down:
		return h, c.IntermediateSize
	}
	return c.IntermediateSize, h
}

// Matrix returns the weights of a module in the layer.
func (l *Layer) Matrix(m Module) kernel.Matrix {
	return [Modules]kernel.Matrix{l.Q, l.K, l.V, l.O, l.Gate, l.Up, l.Down}[m]
}

// A Pair is the low-rank update of one module: W + (Alpha/Rank)·B·A.
type Pair struct {
	A kernel.Matrix // dimensions [rank, in]
	B kernel.Matrix // dimensions [out, rank]
}

// An Adapter is a LoRA adapter (Hu et al. 2021). Layers[i][m] is the pair of module m in layer i.
// If the adapter does not modify a module, the matrices of its pair have nil data.
type Adapter struct {
	Rank     int
	Alpha    float64
	BaseHash string // Weights.Hash of the base model on which the adapter was trained; "" if unknown
	Layers   [][Modules]Pair

	flat []float32
}

// Scale returns alpha/rank, the factor of B·A.
func (a *Adapter) Scale() float32 { return float32(a.Alpha / float64(a.Rank)) }

// Flat returns all parameters of the adapter as one vector: by layer, and then by input (see
// inputs). For each input, the matrices A of all its modules precede the matrices B.
func (a *Adapter) Flat() []float32 { return a.flat }

// Has reports whether the adapter modifies a module.
func (a *Adapter) Has(m Module) bool { return a != nil && a.Layers[0][m].A.Data != nil }

// Modules returns the modules that the adapter modifies.
func (a *Adapter) Modules() []Module {
	var out []Module
	for m := range Modules {
		if a.Has(m) {
			out = append(out, m)
		}
	}
	return out
}

// NewAdapter returns an adapter with zero matrices for the given modules.
func NewAdapter(c Config, rank int, alpha float64, modules []Module) *Adapter {
	a := &Adapter{Rank: rank, Alpha: alpha}
	n := 0
	for _, m := range modules {
		out, in := m.Shape(&c)
		n += c.Layers * rank * (out + in)
	}
	a.layOut(c, modules, make([]float32, n))
	return a
}

// layOut divides flat into the matrices of the adapter. The matrices A of modules with the same
// input are adjacent, so that one product applies all of them.
func (a *Adapter) layOut(c Config, modules []Module, flat []float32) {
	a.flat, a.Layers = flat, make([][Modules]Pair, c.Layers)
	take := func(rows, cols int) kernel.Matrix {
		m := view(flat, rows, cols)
		flat = flat[rows*cols:]
		return m
	}
	for i := range a.Layers {
		for _, input := range inputs {
			for _, m := range input {
				if _, in := m.Shape(&c); slices.Contains(modules, m) {
					a.Layers[i][m].A = take(a.Rank, in)
				}
			}
			for _, m := range input {
				if out, _ := m.Shape(&c); slices.Contains(modules, m) {
					a.Layers[i][m].B = take(out, a.Rank)
				}
			}
		}
	}
}

// Initialize draws A from the uniform distribution of PEFT (Kaiming with a = √5, which is ±1/√in),
// and sets B to 0, so that the adapter does not change the model.
func (a *Adapter) Initialize(seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0x6c6f7261))
	for i := range a.Layers {
		for m := range Modules {
			p := &a.Layers[i][m]
			bound := 1 / math.Sqrt(float64(max(p.A.Cols, 1)))
			for j := range p.A.Data {
				p.A.Data[j] = float32((2*rng.Float64() - 1) * bound)
			}
			clear(p.B.Data)
		}
	}
}

// Merge returns a copy of the weights w to which the adapter's update is added.
func (a *Adapter) Merge(w *Weights) *Weights {
	merged := w.Clone()
	for i := range a.Layers {
		a.mergeLayer(i, &merged.Layers[i])
	}
	return merged
}

// mergeLayer adds the adapter's update to the weights of layer i.
func (a *Adapter) mergeLayer(i int, l *Layer) {
	for m := range Modules {
		if a.Has(m) {
			a.MergeModule(i, m, l.Matrix(m), 1)
		}
	}
}

// MergeModule adds the adapter's update of module m to target, the module's weights in layer i. The
// adapter must modify the module. workers is the number of goroutines, which does not change the
// result.
func (a *Adapter) MergeModule(i int, m Module, target kernel.Matrix, workers int) {
	const rows = 64 // number of rows that a goroutine computes at a time
	scale, p := a.Scale(), &a.Layers[i][m]
	Each((target.Rows+rows-1)/rows, workers, func(part int) {
		for row := part * rows; row < min((part+1)*rows, target.Rows); row++ {
			out := target.Data[row*target.Stride:][:target.Cols]
			for r := range a.Rank {
				f := scale * p.B.Data[row*a.Rank+r]
				for j, v := range p.A.Data[r*p.A.Cols:][:p.A.Cols] {
					out[j] += f * v
				}
			}
		}
	})
}
