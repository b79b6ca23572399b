package serve

import (
	"math"
	"math/rand/v2"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/kernel"
)

// A sampler samples the tokens of one request. A token depends only on the request and the logits.
type sampler struct {
	temperature      float64
	topK             int
	topP, minP, typP float64
	mirostat         *mirostat   // nil if Mirostat is disabled
	penalty          *penalty    // nil if there is no penalty
	constraint       *constraint // nil if the completion is unconstrained
	source           *rand.Rand
	probs            []float32
	candidates       []candidate
}

// greedyBelow is the temperature below which the probabilities of all tokens except the most
// probable one round to 0 in float32.
const greedyBelow = 1e-4

// seedStream is the second seed of the generators of all samplers.
const seedStream = 0x73657276

func newSampler(req *engines.CompletionRequest, prompt []int) *sampler {
	s := &sampler{
		temperature: req.Temperature, topK: req.TopK, topP: req.TopP, minP: req.MinP, typP: req.TypicalP,
		penalty: newPenalty(req, prompt),
	}
	if req.MirostatTarget > 0 {
		s.mirostat = newMirostat(req.MirostatTarget, req.MirostatRate)
	}
	seed := rand.Uint64()
	if req.Seed != nil {
		seed = *req.Seed
	}
	s.source = rand.New(rand.NewPCG(seed, seedStream))
	return s
}

// next samples a token, and returns it with its probability among the candidates that pass the
// filters. The order of the filters is the one that engines.CompletionRequest documents.
func (s *sampler) next(logits []float32) (token int, p float64, err error) {
	if !finite(logits) {
		return 0, 0, errDamaged()
	}
	if s.constraint != nil {
		if logits, err = s.constraint.apply(logits); err != nil {
			return 0, 0, err
		}
		defer func() {
			if err == nil {
				err = s.constraint.accept(token)
			}
		}()
	}
	if s.penalty != nil {
		logits = s.penalty.apply(logits)
		defer func() { s.penalty.observe(token) }()
	}
	if s.temperature < greedyBelow {
		return argmax(logits), 1, nil
	}
	s.probs = append(s.probs[:0], logits...)
	kernel.Scale(float32(1/s.temperature), s.probs)
	kernel.Softmax(s.probs)
	kept := s.filtered()
	if len(kept) == 0 { // the probabilities overflowed, because the temperature is small
		return 0, 0, errDamaged()
	}
	token, p = s.draw(kept)
	if s.mirostat != nil {
		s.mirostat.update(p)
	}
	return token, p, nil
}

// unfiltered reports whether tokens are drawn from the distribution of the model itself.
func (s *sampler) unfiltered() bool {
	return s.temperature == 1 && s.constraint == nil && s.penalty == nil && s.mirostat == nil && s.topK <= 0 &&
		(s.topP <= 0 || s.topP >= 1) && s.minP <= 0 && (s.typP <= 0 || s.typP >= 1)
}

func errDamaged() error {
	return domain.Errorf(domain.DataLoss,
		"the model's output is not a number: its weights are damaged or its training diverged; deploy another checkpoint")
}

// finite reports whether no logit is NaN or +Inf, and at least one is finite.
func finite(logits []float32) bool {
	some := false
	for _, v := range logits {
		if v != v || v > math.MaxFloat32 {
			return false
		}
		some = some || v >= -math.MaxFloat32
	}
	return some
}

// argmax returns the token with the largest logit; the first one if several are equal.
func argmax(logits []float32) int {
	top := 0
	for i, v := range logits {
		if v > logits[top] {
			top = i
		}
	}
	return top
}

// filtered returns the candidates that pass the filters.
func (s *sampler) filtered() []candidate {
	limited := s.topK > 0 && s.topK < len(s.probs)
	nucleus, typical := s.topP > 0 && s.topP < 1, s.typP > 0 && s.typP < 1
	if s.mirostat != nil {
		all := s.above(0)
		sortByProbability(all)
		return s.mirostat.filter(all)
	}
	// Without topK, the tokens with a probability below (1-topP)/len have together less than
	// 1-topP. The nucleus contains none of them, so they need not be sorted.
	threshold := float32(0)
	if nucleus && !limited {
		threshold = float32((1 - s.topP) / float64(len(s.probs)) / 2)
	}
	left, mass := s.above(threshold), 1.0
	if !limited && !nucleus && !typical && s.minP <= 0 {
		return left
	}
	sortByProbability(left)
	if limited {
		left = topK(left, s.topK)
		mass = total(left)
	}
	if nucleus {
		left = topP(left, s.topP, mass)
	}
	if s.minP > 0 {
		left = minP(left, s.minP)
	}
	if typical {
		left = typicalP(left, s.typP)
	}
	return left
}

// above returns the candidates with a positive probability of at least threshold.
func (s *sampler) above(threshold float32) []candidate {
	s.candidates = s.candidates[:0]
	for token, p := range s.probs {
		if p >= threshold && p > 0 {
			s.candidates = append(s.candidates, candidate{token, float64(p)})
		}
	}
	return s.candidates
}

// draw samples a candidate in proportion to the probabilities. It returns the token, and its
// probability relative to the sum of all.
func (s *sampler) draw(candidates []candidate) (token int, p float64) {
	mass := total(candidates)
	rest := s.source.Float64() * mass
	for _, c := range candidates {
		if rest -= c.p; rest < 0 {
			return c.token, c.p / mass
		}
	}
	return candidates[0].token, candidates[0].p / mass
}
