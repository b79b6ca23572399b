package train

// dapo is decoupled clip and dynamic sampling policy optimisation (Yu et al.
// 2025, "DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
// equation 8): the mean over all tokens of all answers of
//
//	loss = −min(ρ·A, clip(ρ, low, high)·A)
//
// with a higher bound above than below, so that what is unlikely can grow, and
// without a KL term. That groups of equal scores are left out, its dynamic
// sampling, holds for all methods here: see advantages.
type dapo struct{ low, high float64 }

func (dapo) weight(s *Sample) float64 { return float64(s.scored()) }

func (o dapo) judge(s *Sample, logp, slopes []float32, told figures) float64 {
	loss := 0.0
	for i, lp := range logp {
		term, slope := tokenTerm(float64(lp)-float64(s.Behaviour[i]), s.Advantage, o.low, o.high, told)
		loss += term
		slopes[i] = float32(slope)
	}
	return loss
}
