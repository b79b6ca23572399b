package train

// dapo is decoupled clip and dynamic sampling policy optimization (Yu et al. 2025, "DAPO: An
// Open-Source LLM Reinforcement Learning System at Scale", equation 8): the mean over all
// tokens of all responses of
//
//	loss = −min(ρ·A, clip(ρ, low, high)·A)
//
// with a wider clipping range above 1 than below, so that unlikely tokens can become likelier.
// There is no KL term. DAPO's dynamic sampling, which drops groups of equal scores, applies to all
// methods of this package: see advantages.
type dapo struct{ clipping }

func (dapo) weight(s *Sample) float64 { return float64(s.scored()) }

func (o dapo) loss(s *Sample, logp, grads []float32, metrics means) float64 {
	loss := 0.0
	for i, lp := range logp {
		term, grad := o.tokenTerm(float64(lp)-float64(s.Behavior[i]), s.Advantage, metrics)
		loss += term
		grads[i] = float32(grad)
	}
	return loss
}
