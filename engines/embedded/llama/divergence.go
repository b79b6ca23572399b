package llama

import (
	"math"

	"anneal/engines/embedded/kernel"
)

// Divergence returns the sum over the targets of the last Forward of a pass of the Kullback-Leibler
// divergence KL(q ‖ p) = Σ q·log(q/p) in nats, where p are the probabilities of this pass and q
// those of a model with the same vocabulary at the same targets: [targets, vocab].
func Divergence(p *Pass, q kernel.Matrix) float64 {
	sum := 0.0
	for i := range p.rows {
		own, other := p.probs.Row(i), q.Row(i)
		for v, probability := range other {
			if probability > 0 {
				sum += float64(probability) * (math.Log(float64(probability)) - math.Log(max(float64(own[v]), smallest)))
			}
		}
	}
	return sum
}

// smallest is the lower bound of the probabilities whose logarithm Divergence computes: float32
// rounds smaller ones to 0, whose logarithm is not finite.
const smallest = math.SmallestNonzeroFloat32

// BackwardDivergence adds the gradient of factor·Divergence(p, q) to g. The derivative of KL(q ‖ p)
// with respect to the logit of token v is (p(v) − q(v))/temperature. It overwrites the
// probabilities of the pass.
func BackwardDivergence(p *Pass, q kernel.Matrix, factor float32, g *Gradient) {
	if len(p.segments) > 0 {
		p.segments[0].gradient = g
	}
	factor *= p.inverseTemperature()
	for i := range p.rows {
		d := p.probs.Row(i)
		kernel.Axpy(-1, q.Row(i), d)
		kernel.Scale(factor, d)
	}
	p.layersBackward(p.logitsBack(g), g)
}
