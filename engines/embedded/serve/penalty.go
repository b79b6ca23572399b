package serve

import "anneal/engines"

// A penalty changes logits by what the text has so far, and by what the
// request wants more or less of.
type penalty struct {
	bias                            map[int]float64
	frequency, presence, repetition float64
	generated                       map[int]int  // token → how often
	seen                            map[int]bool // in the prompt or generated
	adjusted                        []float32
}

// newPenalty is nil for a request that asks for none.
func newPenalty(req *engines.CompletionRequest, prompt []int) *penalty {
	p := &penalty{bias: req.LogitBias, frequency: req.FrequencyPenalty, presence: req.PresencePenalty, repetition: req.RepetitionPenalty,
		generated: map[int]int{}, seen: map[int]bool{}}
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

// apply is the logits with what is added to them; they themselves stay.
func (p *penalty) apply(logits []float32) []float32 {
	p.adjusted = append(p.adjusted[:0], logits...)
	for token, bias := range p.bias {
		p.adjusted[token] += float32(bias)
	}
	if p.repetition != 1 {
		p.repeat()
	}
	for token, times := range p.generated {
		p.adjusted[token] -= float32(p.frequency*float64(times) + p.presence)
	}
	return p.adjusted
}

// repeat makes tokens of the prompt and the answer less likely: a positive
// logit is divided by the penalty, a negative one multiplied with it (Keskar et
// al. 2019, "CTRL", section 4.1, and its usual reading for negative logits).
func (p *penalty) repeat() {
	for token := range p.seen {
		if l := p.adjusted[token]; l > 0 {
			p.adjusted[token] = l / float32(p.repetition)
		} else {
			p.adjusted[token] = l * float32(p.repetition)
		}
	}
}

// note takes in a token that was drawn.
func (p *penalty) note(token int) {
	p.generated[token]++
	p.seen[token] = true
}
