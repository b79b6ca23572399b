package serve

import (
	"cmp"
	"math"
	"slices"
)

// A candidate is a token that may be drawn, with its probability; those of a
// list need not add up to 1.
type candidate struct {
	token int
	p     float64
}

// total is the candidates' probability in all.
func total(candidates []candidate) float64 {
	sum := 0.0
	for _, c := range candidates {
		sum += c.p
	}
	return sum
}

// byChance puts the likeliest first; equals go by their number.
func byChance(candidates []candidate) {
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.p, a.p), cmp.Compare(a.token, b.token))
	})
}

// topK keeps the k likeliest (Fan et al. 2018, "Hierarchical Neural Story
// Generation"). The candidates lie by chance.
func topK(candidates []candidate, k int) []candidate {
	return candidates[:min(k, len(candidates))]
}

// topP keeps the fewest likeliest that have at least the share p of mass:
// nucleus sampling (Holtzman et al. 2020, "The Curious Case of Neural Text
// Degeneration"). The candidates lie by chance; mass is their total, with those
// that were left out before they were sorted.
func topP(candidates []candidate, p, mass float64) []candidate {
	sum := 0.0
	for i, c := range candidates {
		if sum += c.p; sum >= p*mass {
			return candidates[:i+1]
		}
	}
	return candidates
}

// minP keeps those that are at least the share p as likely as the likeliest
// (Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling"). The candidates
// lie by chance.
func minP(candidates []candidate, p float64) []candidate {
	for i, c := range candidates {
		if c.p < p*candidates[0].p {
			return candidates[:i]
		}
	}
	return candidates
}

// typicalP keeps the fewest candidates that have at least the share p of the
// probability, those first whose surprise -ln(p) is nearest to the entropy,
// which is the surprise to be expected (Meister et al. 2023, "Locally Typical
// Sampling"). It sorts them anew.
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

// A mirostat holds the surprise of a text near a target (Basu et al. 2021,
// "Mirostat: A Neural Text Decoding Algorithm that Directly Controls
// Perplexity", its second version). Surprises are in bits; the target is the
// binary logarithm of the target perplexity.
type mirostat struct {
	target, rate float64
	bound        float64 // µ: no candidate may surprise more; begins at twice the target
}

func newMirostat(perplexity, rate float64) *mirostat {
	target := math.Log2(perplexity)
	return &mirostat{target: target, rate: cmp.Or(rate, 0.1), bound: 2 * target}
}

// keep leaves the candidates whose surprise is within the bound, the likeliest
// at least. They lie by chance, and their probabilities add up to 1.
func (m *mirostat) keep(candidates []candidate) []candidate {
	for i, c := range candidates {
		if i > 0 && -math.Log2(c.p) > m.bound {
			return candidates[:i]
		}
	}
	return candidates
}

// learn moves the bound by how far the surprise of a token that was drawn with
// probability p lies from the target.
func (m *mirostat) learn(p float64) {
	m.bound -= m.rate * (-math.Log2(p) - m.target)
}
