package train

import "math"

// grpo is group relative policy optimization (Shao et al. 2024, "DeepSeekMath", equation 3): the
// mean over responses of the mean over a response's tokens of
//
//	loss = −min(ρ·A, clip(ρ, low, high)·A) + β·KL
//	ρ = π/π_old,  KL = π_ref/π − log(π_ref/π) − 1
//
// where A is the response's advantage in its group and π_old the policy that generated it. Without
// the KL term, no reference model is needed.
type grpo struct {
	clipping
	klBeta float64
}

func (grpo) weight(*Sample) float64 { return 1 }

func (o grpo) loss(s *Sample, logp, grads []float32, metrics means) float64 {
	n := float64(len(logp))
	loss := 0.0
	for i, lp := range logp {
		term, grad := o.tokenTerm(float64(lp)-float64(s.Behavior[i]), s.Advantage, metrics)
		if o.klBeta > 0 {
			kl, rise := klTerm(float64(lp), float64(s.Reference[i]))
			metrics.add("kl", kl, 1)
			term, grad = term+o.klBeta*kl, grad+o.klBeta*rise
		}
		loss += term / n
		grads[i] = float32(grad / n)
	}
	return loss
}

// A clipping limits the ratio ρ = π/π_old between the probabilities of the current policy and of
// the policy that generated the responses, which is the importance weight of a response.
type clipping struct {
	low, high float64 // ratios beyond these limits, in the direction of the advantage, give no gradient
	// truncate is the maximum importance weight of a response with a negative advantage, which low and
	// high do not limit; 0 for no maximum. A truncated weight is a constant factor of the gradient of
	// the log-probability (Espeholt et al. 2018, "IMPALA", section 4.1).
	truncate float64
}

// tokenTerm returns the term for a token whose log-probability changed by shift, and adds its
// metrics to metrics.
func (c clipping) tokenTerm(shift, advantage float64, metrics means) (loss, grad float64) {
	loss, grad = c.term(shift, advantage, metrics)
	metrics.add(drift, driftTerm(shift), 1)
	return loss, grad
}

// term returns −min(ρ·A, clip(ρ, low, high)·A), where ρ = exp(shift), and its derivative with
// respect to shift (Schulman et al. 2017, "Proximal Policy Optimization Algorithms", equation 7).
// It adds its metrics to metrics.
func (c clipping) term(shift, advantage float64, metrics means) (loss, grad float64) {
	ratio := ratioOf(shift)
	clipped := advantage >= 0 && ratio > c.high || advantage < 0 && ratio < c.low
	metrics.add("clipped", share(clipped), 1)
	metrics.add("ratio", ratio, 1)
	switch {
	case clipped:
		return -min(max(ratio, c.low), c.high) * advantage, 0
	case c.truncate > 0 && advantage < 0 && ratio > c.truncate:
		weighted := -c.truncate * advantage
		return weighted * (1 + math.Log(ratio/c.truncate)), weighted
	}
	return -ratio * advantage, -ratio * advantage
}

// drift is the name of a metric: an estimate of the KL divergence per token from the policy that
// generated the responses (Schulman 2020, "Approximating KL Divergence").
const drift = "drift"

func driftTerm(shift float64) float64 {
	ratio := ratioOf(shift)
	return ratio - 1 - math.Log(ratio)
}

// klTerm estimates the KL divergence from the reference model by one token that was sampled from
// the policy. It returns the estimate, which is unbiased and not negative, and its derivative with
// respect to the log-probability of the token.
func klTerm(logp, reference float64) (kl, grad float64) {
	ratio := ratioOf(reference - logp)
	return ratio - 1 - math.Log(ratio), 1 - ratio
}

// ratioOf returns exp(difference). It limits difference to ±20, so that sums remain finite.
func ratioOf(difference float64) float64 { return math.Exp(min(max(difference, -20), 20)) }
