package serve

import (
	"cmp"
	"math"
	"slices"
)

// A candidate is a token that the sampler may sample, with its probability. The probabilities of a
// list of candidates need not sum to 1.
type candidate struct {
	token int
	p     float64
}

func total(candidates []candidate) float64 {
	sum := 0.0
	for _, c := range candidates {
		sum += c.p
	}
	return sum
}

// sortByProbability sorts candidates by descending probability, and those with equal probabilities
// by token ID.
func sortByProbability(candidates []candidate) {
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.p, a.p), cmp.Compare(a.token, b.token))
	})
}

// topK keeps the k most probable candidates (Fan et al. 2018, "Hierarchical Neural Story
// Generation"). The candidates must be sorted by probability.
func topK(candidates []candidate, k int) []candidate {
	return candidates[:min(k, len(candidates))]
}

// topP keeps the smallest number of most probable candidates whose total probability is at least
// p·mass: nucleus sampling (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration").
// The candidates must be sorted by probability. mass is the total probability of all tokens, also
// of those that are not candidates.
func topP(candidates []candidate, p, mass float64) []candidate {
	sum := 0.0
	for i, c := range candidates {
		if sum += c.p; sum >= p*mass {
			return candidates[:i+1]
		}
	}
	return candidates
}

// minP keeps the candidates whose probability is at least p times the highest one (Nguyen et al.
// 2024, "Turning Up the Heat: Min-p Sampling"). The candidates must be sorted by probability.
func minP(candidates []candidate, p float64) []candidate {
	for i, c := range candidates {
		if c.p < p*candidates[0].p {
			return candidates[:i]
		}
	}
	return candidates
}

// typicalP keeps the smallest set of candidates with at least the fraction p of the total
// probability, beginning with those whose surprisal -ln(p) is closest to its expected value, the
// entropy (Meister et al. 2023, "Locally Typical Sampling"). It changes the order of the
// candidates.
func typicalP(candidates []candidate, p float64) []candidate {
	mass, entropy := total(candidates), 0.0
	for _, c := range candidates {
		if q := c.p / mass; q > 0 {
			entropy -= q * math.Log(q)
		}
	}
	distance := func(c candidate) float64 { return math.Abs(-math.Log(c.p/mass) - entropy) }
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(distance(a), distance(b)), cmp.Compare(a.token, b.token))
	})
	return topP(candidates, p, mass)
}

// A mirostat keeps the surprisal of a text near a target (Basu et al. 2021, "Mirostat: A Neural
// Text Decoding Algorithm that Directly Controls Perplexity", version 2). Surprisal is in bits: the
// target is the binary logarithm of the target perplexity.
type mirostat struct {
	target, rate float64
	bound        float64 // µ, the maximum surprisal of a candidate, which begins at twice the target
}

func newMirostat(perplexity, rate float64) *mirostat {
	target := math.Log2(perplexity)
	return &mirostat{target: target, rate: cmp.Or(rate, 0.1), bound: 2 * target}
}

// filter keeps the candidates whose surprisal is at most the bound, and at least the first one. The
// candidates must be sorted by probability, and their probabilities must sum to 1.
func (m *mirostat) filter(candidates []candidate) []candidate {
	for i, c := range candidates {
		if i > 0 && -math.Log2(c.p) > m.bound {
			return candidates[:i]
		}
	}
	return candidates
}

// update changes the bound by the difference between the target and the surprisal of the sampled
// token, whose probability was p.
func (m *mirostat) update(p float64) {
	m.bound -= m.rate * (-math.Log2(p) - m.target)
}
