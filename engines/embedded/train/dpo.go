package train

import "math"

// dpo is direct preference optimization (Rafailov et al. 2023, "Direct Preference Optimization:
// Your Language Model is Secretly a Reward Model", equation 7): the mean over pairs of
//
//	loss = −log σ(reward(chosen) − reward(rejected))
//	reward(y) = β·(log π(y) − log π_ref(y))
//
// where the log-probability of a response is the sum over its tokens.
type dpo struct{ beta float64 }

func (dpo) weight(*Sample) float64 { return 1 }

func (o dpo) loss(s *Sample, logp, grads []float32, metrics means) float64 {
	n := s.targets()
	shift := total(logp[:n]) - total(s.Reference[:n])
	chosen, rejected := o.beta*shift, o.beta*(total(logp[n:])-total(s.Reference[n:]))
	margin := chosen - rejected
	pull := o.beta * sigmoid(-margin)
	fill32(grads[:n], -pull)
	fill32(grads[n:], pull)
	metrics.add("accuracy", share(margin > 0), 1)
	metrics.add("margin", margin, 1)
	metrics.add("reward_chosen", chosen, 1)
	metrics.add("reward_rejected", rejected, 1)
	metrics.add(chosenShift, shift, float64(n))
	return softplus(-margin)
}

// chosenShift is the name of a metric: how much the log-probability of the chosen responses differs
// from that under the reference model, in nats per token.
const chosenShift = "chosen_shift"

func sigmoid(x float64) float64 {
	if x < 0 {
		e := math.Exp(x)
		return e / (1 + e)
	}
	return 1 / (1 + math.Exp(-x))
}

// softplus returns log(1 + eˣ) = −log σ(−x).
func softplus(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }
