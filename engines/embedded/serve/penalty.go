package serve

import "anneal/engines"

// A penalty adjusts logits by logit_bias and by the tokens that the text already contains.
type penalty struct {
	bias                            map[int]float64
	frequency, presence, repetition float64
	generated                       map[int]int  // occurrences of each token
	seen                            map[int]bool // tokens of the prompt and the completion
	adjusted                        []float32
}

// newPenalty returns the penalty of a request, nil if the request has none.
func newPenalty(req *engines.CompletionRequest, prompt []int) *penalty {
	p := &penalty{
		bias: req.LogitBias, frequency: req.FrequencyPenalty, presence: req.PresencePenalty,
		repetition: req.RepetitionPenalty,
		generated:  map[int]int{}, seen: map[int]bool{},
	}
	if p.repetition == 0 {
		p.repetition = 1
	}
	if len(p.bias) == 0 && p.frequency == 0 && p.presence == 0 && p.repetition == 1 {
		return nil
	}
	for _, token := range prompt {
		p.seen[token] = true
	}
	return p
}

// apply returns an adjusted copy of logits.
func (p *penalty) apply(logits []float32) []float32 {
	p.adjusted = append(p.adjusted[:0], logits...)
	for token, bias := range p.bias {
		p.adjusted[token] += float32(bias)
	}
	if p.repetition != 1 {
		p.applyRepetition()
	}
	for token, times := range p.generated {
		p.adjusted[token] -= float32(p.frequency*float64(times) + p.presence)
	}
	return p.adjusted
}

// applyRepetition divides positive logits of the tokens in the prompt and the completion by the
// penalty, and multiplies negative logits by it (Keskar et al. 2019, "CTRL", section 4.1,
// extended to negative logits as is usual).
func (p *penalty) applyRepetition() {
	for token := range p.seen {
		if l := p.adjusted[token]; l > 0 {
			p.adjusted[token] = l / float32(p.repetition)
		} else {
			p.adjusted[token] = l * float32(p.repetition)
		}
	}
}

// observe records a sampled token.
func (p *penalty) observe(token int) {
	p.generated[token]++
	p.seen[token] = true
}
