package train

import "math"

// orpo is odds ratio preference optimization (Hong et al. 2024, "ORPO: Monolithic Preference
// Optimization without Reference Model", equations 6 and 7): the mean over pairs of
//
//	loss = −ℓ(chosen) − λ·log σ(odds(chosen) − odds(rejected))
//	odds(y) = ℓ(y) − log(1 − exp ℓ(y))
//
// where ℓ(y) is the mean log-probability of the tokens of a response.
type orpo struct{ lambda float64 }

func (orpo) weight(*Sample) float64 { return 1 }

func (o orpo) loss(s *Sample, logp, grads []float32, metrics means) float64 {
	n := s.targets()
	chosen, rejected := total(logp[:n])/float64(n), total(logp[n:])/float64(len(logp)-n)
	better, rise := logOdds(chosen)
	worse, fall := logOdds(rejected)
	margin := better - worse
	pull := o.lambda * sigmoid(-margin)
	fill32(grads[:n], -(1+pull*rise)/float64(n))
	fill32(grads[n:], pull*fall/float64(len(logp)-n))
	metrics.add("accuracy", share(margin > 0), 1)
	metrics.add("margin", margin, 1)
	metrics.add("chosen", chosen, 1)
	metrics.add("rejected", rejected, 1)
	return -chosen + o.lambda*softplus(-margin)
}

// minComplement is the minimum of 1 − p, so that odds remain finite.
const minComplement = 1e-6

// logOdds returns log(p/(1−p)) for logp = log p, and its derivative with respect to logp.
func logOdds(logp float64) (odds, grad float64) {
	complement := -math.Expm1(logp)
	if complement < minComplement {
		return logp - math.Log(minComplement), 1
	}
	return logp - math.Log(complement), 1 / complement
}
