package train

import "math"

// orpo is odds ratio preference optimisation (Hong et al. 2024, "ORPO:
// Monolithic Preference Optimization without Reference Model", equations 6 and
// 7): the mean over pairs of
//
//	loss = −ℓ(chosen) − λ·log σ(odds(chosen) − odds(rejected))
//	odds(y) = ℓ(y) − log(1 − exp ℓ(y))
//
// where ℓ(y) is the mean log-probability of an answer's tokens.
type orpo struct{ lambda float64 }

func (orpo) weight(*Sample) float64 { return 1 }

func (o orpo) judge(s *Sample, logp, slopes []float32, told figures) float64 {
	n := s.learnt()
	chosen, rejected := total(logp[:n])/float64(n), total(logp[n:])/float64(len(logp)-n)
	better, rise := logOdds(chosen)
	worse, fall := logOdds(rejected)
	margin := better - worse
	pull := o.lambda * sigmoid(-margin)
	fill32(slopes[:n], -(1+pull*rise)/float64(n))
	fill32(slopes[n:], pull*fall/float64(len(logp)-n))
	told.add("accuracy", share(margin > 0), 1)
	told.add("margin", margin, 1)
	told.add("chosen", chosen, 1)
	told.add("rejected", rejected, 1)
	return -chosen + o.lambda*softplus(-margin)
}

// leastDoubt bounds 1 − p from below, so that an answer the model is sure of
// has finite odds.
const leastDoubt = 1e-6

// logOdds is log(p/(1−p)) of a log-probability, and its derivative by it.
func logOdds(logp float64) (odds, slope float64) {
	doubt := -math.Expm1(logp)
	if doubt < leastDoubt {
		return logp - math.Log(leastDoubt), 1
	}
	return logp - math.Log(doubt), 1 / doubt
}
