package serve

import "anneal/engines"

// A penalty changes logits by logit_bias and by the tokens that the text already contains.
type penalty struct {
	bias                            map[int]float64
	frequency, presence, repetition float64
	generated                       map[int]int  // number of occurrences of each token in the completion
	seen                            map[int]bool // tokens of the prompt and of the completion
	adjusted                        []float32
}

// newPenalty returns the penalty of a request; nil if it has none.
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

// apply returns a copy of the logits with the penalty.
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

// applyRepetition divides the positive logits of tokens in the prompt and the completion by the
// repetition penalty, and multiplies the negative ones by it (Keskar et al. 2019, "CTRL", section
// 4.1, with the usual extension to negative logits).
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
