package train

import "math"

// advantages returns the group-relative advantages of the responses to one prompt: (score -
// mean)/std (Shao et al. 2024, "DeepSeekMath", section 4.1.2). It returns nil if all scores are
// equal; the caller then drops the group, as in Yu et al. 2025, "DAPO".
func advantages(scores []float64) []float64 {
	mean, std := spread(scores)
	if std < minSpread {
		return nil
	}
	out := make([]float64, len(scores))
	for i, score := range scores {
		out[i] = (score - mean) / std
	}
	return out
}

// minSpread is the standard deviation below which scores count as equal, because rounding errors
// can make equal scores differ.
const minSpread = 1e-9

// spread returns the mean and the population standard deviation of scores; zeros if there are none.
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
