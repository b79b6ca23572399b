package serve

import (
	"slices"

	"anneal/engines"
)

const (
	mostGuesses  = 8    // tokens that are guessed at once, where nothing else is said
	refind       = 3    // tokens by which an answer is found again in its prediction
	lookBack     = 4096 // tokens of a text that are looked through
	firstChance  = 0.7  // that a guess is right, before any was judged
	chanceWeight = 0.15 // of the latest guess
)

// A guesser says how a request's answer may go on: as what was predicted of it,
// and elsewhere as the text did when the same tokens came in it before (prompt
// lookup: Saxena 2023; Leviathan et al. 2023 for the principle). What it guesses
// is read together with the last token and kept as far as the sampler draws it
// anyway, so that the answer is never another.
type guesser struct {
	text      []int // the prompt and what was drawn
	predicted []int
	at        int     // where the answer goes on in predicted, when it is in it
	lost      bool    // … which it has left at that place
	ngram     int     // tokens that must be found again in the text; 0: it is not looked at
	most      int     // tokens at once
	offered   []int   // the latest guess
	reading   int     // tokens of it that are read
	drawn     int     // tokens since
	fromText  bool    // it is not from predicted
	chance    float64 // that the next token of a guess is right, judged by the latest
	counts    engines.Speculation
}

// newGuesser is nil where nothing is to be guessed.
func (m *model) newGuesser(req *engines.CompletionRequest, prompt []int) *guesser {
	text := req.Prediction
	if text == "" {
		text = req.Speculation
	}
	if text == "" && m.guess.NgramLength <= 0 {
		return nil
	}
	g := &guesser{text: slices.Clone(prompt), ngram: min(m.guess.NgramLength, lookBack), most: mostGuesses, chance: firstChance}
	if m.guess.Tokens > 0 {
		g.most = min(m.guess.Tokens, engines.MaxGuesses)
	}
	if text != "" {
		g.predicted = m.tokenizer.Encode(text)
		g.counts.PredictedTokens = len(g.predicted)
		g.predicted = g.predicted[:min(len(g.predicted), m.info.ContextLength)]
	}
	return g
}

// guess says how the text may go on: at most so many tokens.
func (g *guesser) guess(most int) []int {
	g.offered, most, g.fromText = g.offered[:0], min(most, g.most), false
	if most <= 0 {
		return nil
	}
	if g.lost {
		g.find()
	}
	switch {
	case !g.lost && g.at < len(g.predicted):
		g.offered = append(g.offered, g.predicted[g.at:min(g.at+most, len(g.predicted))]...)
	case g.ngram > 0 && len(g.text) > g.ngram:
		g.fromText = true
		g.offered = append(g.offered, g.before(most)...)
	}
	return g.offered
}

// find looks for the place in what was predicted where the answer goes on: the
// next one after its latest tokens, from where it was left, else the first.
func (g *guesser) find() {
	if len(g.text) < refind {
		return
	}
	end := g.text[len(g.text)-refind:]
	after := func(from int) int {
		for i := from; i+refind <= len(g.predicted); i++ {
			if slices.Equal(g.predicted[i:i+refind], end) {
				return i + refind
			}
		}
		return -1
	}
	place := after(max(g.at-refind, 0))
	if place < 0 {
		place = after(0)
	}
	if place >= 0 {
		g.at, g.lost = place, false
	}
}

// before is what followed when the text had the same end before, the latest
// time: at most so many tokens.
func (g *guesser) before(most int) []int {
	end := g.text[len(g.text)-g.ngram:]
	for i := len(g.text) - g.ngram - 1; i >= max(len(g.text)-lookBack, 0); i-- {
		if next := i + g.ngram; slices.Equal(g.text[i:next], end) {
			return g.text[next:min(next+most, len(g.text))]
		}
	}
	return nil
}

// read notes that the first n tokens of the latest guess are read with the step.
func (g *guesser) read(n int) {
	g.reading, g.drawn = n, 0
	for len(g.counts.Guessed) < n {
		g.counts.Guessed, g.counts.Right = append(g.counts.Guessed, 0), append(g.counts.Right, 0)
	}
	for i := range n {
		g.counts.Guessed[i]++
	}
}

// learn takes in the token that was drawn next. The guess is judged by it also
// where it was not read.
func (g *guesser) learn(token int) {
	g.text = append(g.text, token)
	g.step(token)
	i := g.drawn
	if i >= len(g.offered) {
		return
	}
	g.drawn++
	right := g.offered[i] == token
	if i == 0 || i < g.reading {
		hit := 0.0
		if right {
			hit = 1
		}
		g.chance += chanceWeight * (hit - g.chance)
	}
	switch {
	case !right:
		g.offered = g.offered[:0]
	case i < g.reading:
		g.counts.Right[i]++
		if !g.fromText {
			g.counts.MatchedTokens++
		}
	}
}

// step follows the answer through what was predicted of it.
func (g *guesser) step(token int) {
	switch {
	case g.lost:
	case g.at < len(g.predicted) && g.predicted[g.at] == token:
		g.at++
	default:
		g.lost = len(g.predicted) > 0
	}
}
