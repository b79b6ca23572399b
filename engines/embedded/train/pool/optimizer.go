package pool

import (
	"math"
	"slices"

	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
)

// An Optimizer is AdamW (Loshchilov and Hutter 2019) for the parameters of one model or adapter.
type Optimizer struct {
	Mean, Variance []float32 // moments
	Steps          int       // number of steps taken, which the bias correction needs

	ranges []decayRange
}

// A decayRange is a range of the trained parameters that one goroutine updates in an optimizer
// step. decay reports whether weight decay applies to it.
type decayRange struct {
	lo, hi int
	decay  bool
}

// NewOptimizer returns an optimizer of parameters that consist of parts.
func NewOptimizer(parts []llama.Part) *Optimizer {
	const maxLen = 1 << 16
	o, at := &Optimizer{}, 0
	for _, part := range parts {
		for end := at + part.Len; at < end; at = min(at+maxLen, end) {
			o.ranges = append(o.ranges, decayRange{at, min(at+maxLen, end), part.Matrix})
		}
	}
	o.Mean, o.Variance = make([]float32, at), make([]float32, at)
	return o
}

// Norm returns the norm of a gradient.
func (o *Optimizer) Norm(gradient []float32) float64 {
	sum := 0.0
	for _, r := range o.ranges {
		sum += float64(kernel.SumSquares(gradient[r.lo:r.hi]))
	}
	return math.Sqrt(sum)
}

// Clip returns the factor that limits a gradient with the given norm to the norm limit.
func Clip(limit, norm float64) float64 { return min(1, limit/(norm+1e-6)) }

// Update takes a step, on workers goroutines. adam.Decay applies to matrices only. The number of
// workers does not change the result.
func (o *Optimizer) Update(parameters, gradient []float32, adam kernel.Adam, workers int) {
	o.Steps++
	adam.Step = o.Steps
	llama.Each(len(o.ranges), workers, func(i int) {
		r, step := o.ranges[i], adam
		if !r.decay {
			step.Decay = 0
		}
		step.Update(parameters[r.lo:r.hi], o.Mean[r.lo:r.hi], o.Variance[r.lo:r.hi], gradient[r.lo:r.hi])
	})
}

// safe is a bound below which the squares of numbers are far from the maximum of float32.
const safe = 1e18

// Step is like Update, but changes nothing and returns false if the norm of the new parameters, or a
// moment, would not be finite. norm is the norm of the gradient.
func (o *Optimizer) Step(parameters, gradient []float32, norm float64, adam kernel.Adam, workers int) bool {
	// an upper bound of the new parameters: the first moment is at most the sum of its old norm and the
	// gradient's, and the divisor is at least Epsilon
	largest := o.Norm(parameters) + adam.Rate/(1-adam.Beta1)*(o.Norm(o.Mean)+norm)/adam.Epsilon
	if norm < safe && largest < safe {
		o.Update(parameters, gradient, adam, workers)
		return true
	}
	vectors := [][]float32{parameters, o.Mean, o.Variance}
	var old [][]float32
	for _, v := range vectors {
		old = append(old, slices.Clone(v))
	}
	o.Update(parameters, gradient, adam, workers)
	if finite(o.Norm(parameters)) && allFinite(o.Mean) && allFinite(o.Variance) {
		return true
	}
	for i, v := range vectors {
		copy(v, old[i])
	}
	o.Steps--
	return false
}

func allFinite(v []float32) bool {
	return !slices.ContainsFunc(v, func(x float32) bool { return !finite(float64(x)) })
}
