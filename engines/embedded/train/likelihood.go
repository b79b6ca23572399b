package train

// likelihood is the negative log-likelihood of the target tokens: the mean over all target
// tokens of
//
//	loss = −log π(token)
type likelihood struct{}

func (likelihood) weight(s *Sample) float64 { return float64(s.scored()) }

func (likelihood) loss(_ *Sample, logp, grads []float32, _ means) float64 {
	fill32(grads, -1)
	return -total(logp)
}
