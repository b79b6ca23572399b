package serve

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/kernel"
)

// A sampler draws one request's tokens. It depends on the request and the
// logits only.
type sampler struct {
	temperature float64
	topK        int
	topP        float64
	source      *rand.Rand
	probs       []float32
	candidates  []candidate
}

type candidate struct {
	token int
	p     float64
}

// greedyBelow is the temperature under which only the likeliest token has a
// chance that float32 can tell from 0.
const greedyBelow = 1e-4

func newSampler(req *engines.CompletionRequest) *sampler {
	s := &sampler{temperature: req.Temperature, topK: req.TopK, topP: req.TopP}
	seed := rand.Uint64()
	if req.Seed != nil {
		seed = *req.Seed
	}
	s.source = rand.New(rand.NewPCG(seed, 0x73657276))
	return s
}

// next draws a token. The order is temperature, the topK likeliest, then the
// fewest likeliest of these that have topP of their probability (nucleus
// sampling, Holtzman et al. 2020). Equals are taken by their number.
func (s *sampler) next(logits []float32) (int, error) {
	top := 0
	for i, v := range logits {
		if v > logits[top] {
			top = i
		}
	}
	if best := float64(logits[top]); math.IsNaN(best) || math.IsInf(best, 0) {
		return 0, domain.Faultf(domain.DataLoss, "the model's output is not a number: its weights are damaged or its training diverged; deploy another checkpoint")
	}
	if s.temperature < greedyBelow {
		return top, nil
	}
	s.probs = append(s.probs[:0], logits...)
	kernel.Scale(float32(1/s.temperature), s.probs)
	kernel.Softmax(s.probs)
	return s.draw(s.kept()), nil
}

// kept are the tokens that topK and topP leave.
func (s *sampler) kept() []candidate {
	s.candidates = s.candidates[:0]
	limited := s.topK > 0 && s.topK < len(s.probs)
	nucleus := s.topP > 0 && s.topP < 1
	// Without topK, tokens under (1-topP)/len have less than 1-topP together,
	// so none of them is in the nucleus and sorting need not see them.
	least := float32(0)
	if nucleus && !limited {
		least = float32((1 - s.topP) / float64(len(s.probs)) / 2)
	}
	for token, p := range s.probs {
		if p >= least {
			s.candidates = append(s.candidates, candidate{token, float64(p)})
		}
	}
	if !limited && !nucleus {
		return s.candidates
	}
	slices.SortFunc(s.candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.p, a.p), cmp.Compare(a.token, b.token))
	})
	if limited {
		s.candidates = s.candidates[:s.topK]
	}
	if !nucleus {
		return s.candidates
	}
	total, sum := 1.0, 0.0
	if limited {
		total = 0
		for _, c := range s.candidates {
			total += c.p
		}
	}
	for i, c := range s.candidates {
		if sum += c.p; sum >= s.topP*total {
			return s.candidates[:i+1]
		}
	}
	return s.candidates
}

// draw takes one candidate by its share of their probability.
func (s *sampler) draw(candidates []candidate) int {
	total := 0.0
	for _, c := range candidates {
		total += c.p
	}
	rest := s.source.Float64() * total
	for _, c := range candidates {
		if rest -= c.p; rest < 0 {
			return c.token
		}
	}
	return candidates[0].token
}
