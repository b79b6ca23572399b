package train

import "math"

// advantages is how much better each answer to one prompt scored than their
// mean, in standard deviations (Shao et al. 2024, "DeepSeekMath", section
// 4.1.2). It is nil when there is no difference to learn from: then the group is
// left out, as Yu et al. 2025 do in "DAPO".
func advantages(scores []float64) []float64 {
	mean, std := spread(scores)
	if std < leastSpread {
		return nil
	}
	out := make([]float64, len(scores))
	for i, score := range scores {
		out[i] = (score - mean) / std
	}
	return out
}

// leastSpread is what sums of equal scores may differ by.
const leastSpread = 1e-9

// spread is the mean and the standard deviation of scores, 0 of none.
func spread(scores []float64) (mean, std float64) {
	if len(scores) == 0 {
		return 0, 0
	}
	n := float64(len(scores))
	for _, score := range scores {
		mean += score / n
	}
	for _, score := range scores {
		std += (score - mean) * (score - mean) / n
	}
	return mean, math.Sqrt(std)
}
