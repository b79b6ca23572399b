package serve

import (
	"strings"
	"unicode/utf8"

	"anneal/engines"
	"anneal/engines/embedded/tokenizer"
)

// A textStream turns tokens into the pieces that a client sees: whole UTF-8
// characters, nothing of a stop sequence and nothing after it.
type textStream struct {
	decoder *tokenizer.Decoder
	raw     *tokenizer.Decoder // spells special tokens; nil when that is not asked for
	stops   []string
	held    string // may be the beginning of a stop sequence
	decoded int    // characters of all tokens so far
	sent    int    // characters of the pieces so far

	tokens   []int // since the last piece, and what is told of them
	spelt    string
	logprobs []engines.Logprob
}

// add takes a token. stopped tells that a stop sequence is complete; the piece
// is then what comes before it.
func (t *textStream) add(token int) (piece engines.Chunk, stopped bool) {
	t.tokens = append(t.tokens, token)
	text := t.decoder.Next(token)
	t.held += text
	t.decoded += utf8.RuneCountInString(text)
	if t.raw != nil {
		t.spelt += t.raw.Next(token)
	}
	if text, found := t.cut(); found {
		return t.last(text), true
	}
	keep := t.suspect()
	if keep == len(t.held) {
		return engines.Chunk{}, false
	}
	now, rest := t.held[:len(t.held)-keep], t.held[len(t.held)-keep:]
	piece = t.piece(now)
	t.held = rest
	return piece, false
}

// end is the last piece; what was held back turned out to be no stop sequence,
// unless the rest of a broken character completes one.
func (t *textStream) end() (piece engines.Chunk, stopped bool) {
	t.held += t.decoder.Rest()
	text, found := t.cut()
	return t.last(text), found
}

// tell hands over what is told of the token that is added next.
func (t *textStream) tell(one engines.Logprob) {
	one.Offset = t.decoded
	t.logprobs = append(t.logprobs, one)
}

// last is the piece after which nothing comes: tokens of what was cut off lie
// at the end of the text.
func (t *textStream) last(text string) engines.Chunk {
	if t.raw != nil {
		t.spelt += t.raw.Rest()
	}
	piece := t.piece(text)
	for i := range piece.Logprobs {
		piece.Logprobs[i].Offset = min(piece.Logprobs[i].Offset, t.sent)
	}
	return piece
}

// piece hands out text with the tokens since the last piece.
func (t *textStream) piece(text string) engines.Chunk {
	c := engines.Chunk{Text: text, Tokens: t.tokens, Raw: t.spelt, Logprobs: t.logprobs}
	t.held, t.tokens, t.spelt, t.logprobs = "", nil, "", nil
	t.sent += utf8.RuneCountInString(text)
	return c
}

// cut is the held text before the first stop sequence in it.
func (t *textStream) cut() (text string, found bool) {
	first := len(t.held)
	for _, stop := range t.stops {
		if at := strings.Index(t.held, stop); at >= 0 {
			first, found = min(first, at), true
		}
	}
	return t.held[:first], found
}

// suspect is the length of the longest end of the held text that begins a stop
// sequence.
func (t *textStream) suspect() int {
	longest := 0
	for _, stop := range t.stops {
		for n := min(len(stop)-1, len(t.held)); n > longest; n-- {
			if strings.HasSuffix(t.held, stop[:n]) {
				longest = n
			}
		}
	}
	return longest
}
