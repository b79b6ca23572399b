package serve

import (
	"slices"

	"anneal/engines"
)

const (
	defaultDraftTokens = 8    // default of the maximum number of draft tokens in a step
	resyncTokens       = 3    // number of tokens that must match to continue in the predicted output
	lookupWindow       = 4096 // number of tokens at the end of the context in which an n-gram is searched
	initialAcceptance  = 0.7  // assumed acceptance rate before a draft token was verified
	acceptanceWeight   = 0.15 // weight of the latest verification in the moving average
)

// An ngramDrafter drafts the next tokens of a completion. It takes them from the client's predicted
// output, or from the text after an earlier occurrence of the last n-gram (prompt lookup: Saxena
// 2023; speculative decoding: Leviathan et al. 2023). A step computes the last token and the draft
// tokens together. A draft token is accepted if the sampler samples the same token, so drafts never
// change the completion.
type ngramDrafter struct {
	context     []int // tokens of the prompt and the completion
	predicted   []int
	next        int         // index in predicted at which the completion continues
	diverged    bool        // the completion differs from predicted at the index next
	ngram       int         // length of the n-grams; 0 disables the search for n-grams
	maxDraft    int         // maximum number of draft tokens in a step
	draft       []int       // tokens of the latest draft
	submitted   int         // number of tokens of the draft that the step verifies
	sampled     int         // number of tokens sampled since the draft
	fromContext bool        // the draft comes from context or from the draft model, not from predicted
	state       *draftState // state of the draft model; nil if there is none
	acceptance  float64     // moving average of the rate at which draft tokens are accepted
	counts      engines.Speculation
}

// newDrafter returns the drafter of a request; nil if speculative decoding is disabled, or if there
// is no predicted output, no n-gram length and no draft model.
func (m *model) newDrafter(req *engines.CompletionRequest, prompt []int) *ngramDrafter {
	text := req.Prediction
	if text == "" {
		text = req.Speculation
	}
	if m.speculation.Disabled || text == "" && m.speculation.NgramLength <= 0 && m.drafts == nil {
		return nil
	}
	d := &ngramDrafter{
		context: slices.Clone(prompt), ngram: min(m.speculation.NgramLength, lookupWindow), maxDraft: defaultDraftTokens,
		acceptance: initialAcceptance,
	}
	if m.speculation.Tokens > 0 {
		d.maxDraft = min(m.speculation.Tokens, engines.MaxDraftTokens)
	}
	if m.drafts != nil {
		d.state = &draftState{}
	}
	if text != "" {
		d.predicted = m.tokenizer.Encode(text)
		d.counts.PredictedTokens = len(d.predicted)
		d.predicted = d.predicted[:min(len(d.predicted), m.info.ContextLength)]
	}
	return d
}

// propose returns a draft of at most limit tokens.
func (d *ngramDrafter) propose(limit int) []int {
	d.draft, limit, d.fromContext = d.draft[:0], min(limit, d.maxDraft), false
	if limit <= 0 {
		return nil
	}
	if d.diverged {
		d.resync()
	}
	switch {
	case !d.diverged && d.next < len(d.predicted):
		d.draft = append(d.draft, d.predicted[d.next:min(d.next+limit, len(d.predicted))]...)
	case d.ngram > 0 && len(d.context) > d.ngram:
		d.fromContext = true
		d.draft = append(d.draft, d.lookup(limit)...)
	}
	return d.draft
}

// resync searches the latest tokens of the completion in predicted, first after the index at which
// the two diverged, then from the beginning. If it finds them, the next draft continues after them.
func (d *ngramDrafter) resync() {
	if len(d.context) < resyncTokens {
		return
	}
	end := d.context[len(d.context)-resyncTokens:]
	after := func(from int) int {
		for i := from; i+resyncTokens <= len(d.predicted); i++ {
			if slices.Equal(d.predicted[i:i+resyncTokens], end) {
				return i + resyncTokens
			}
		}
		return -1
	}
	place := after(max(d.next-resyncTokens, 0))
	if place < 0 {
		place = after(0)
	}
	if place >= 0 {
		d.next, d.diverged = place, false
	}
}

// lookup returns at most limit tokens that follow the most recent earlier occurrence of the n-gram
// at the end of the context. It returns nil if the last lookupWindow tokens do not contain one.
func (d *ngramDrafter) lookup(limit int) []int {
	end := d.context[len(d.context)-d.ngram:]
	for i := len(d.context) - d.ngram - 1; i >= max(len(d.context)-lookupWindow, 0); i-- {
		if next := i + d.ngram; slices.Equal(d.context[i:next], end) {
			return d.context[next:min(next+limit, len(d.context))]
		}
	}
	return nil
}

// submit records that the next step verifies the first n tokens of the latest draft.
func (d *ngramDrafter) submit(n int) {
	d.submitted, d.sampled = n, 0
	for len(d.counts.Drafted) < n {
		d.counts.Drafted, d.counts.Accepted = append(d.counts.Drafted, 0), append(d.counts.Accepted, 0)
	}
	for i := range n {
		d.counts.Drafted[i]++
	}
}

// observe records the next sampled token. It updates the acceptance rate for each verified draft
// token, and for the first draft token even if the step did not verify it.
func (d *ngramDrafter) observe(token int) {
	d.context = append(d.context, token)
	d.follow(token)
	i := d.sampled
	if i >= len(d.draft) {
		return
	}
	d.sampled++
	right := d.draft[i] == token
	if i == 0 || i < d.submitted {
		hit := 0.0
		if right {
			hit = 1
		}
		d.acceptance += acceptanceWeight * (hit - d.acceptance)
	}
	switch {
	case !right:
		d.draft = d.draft[:0]
	case i < d.submitted:
		d.counts.Accepted[i]++
		if !d.fromContext {
			d.counts.MatchedTokens++
		}
	}
}

// follow moves to the next token of predicted if token is the predicted one, and otherwise records
// that the two diverge.
func (d *ngramDrafter) follow(token int) {
	switch {
	case d.diverged:
	case d.next < len(d.predicted) && d.predicted[d.next] == token:
		d.next++
	default:
		d.diverged = len(d.predicted) > 0
	}
}
