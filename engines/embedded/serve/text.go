package serve

import (
	"strings"

	"anneal/engines"
	"anneal/engines/embedded/tokenizer"
)

// A textStream turns tokens into the pieces that a client sees: whole UTF-8
// characters, nothing of a stop sequence and nothing after it.
type textStream struct {
	decoder *tokenizer.Decoder
	stops   []string
	held    string // may be the beginning of a stop sequence
	tokens  []int  // since the last piece
}

// add takes a token. stopped tells that a stop sequence is complete; the piece
// is then what comes before it.
func (t *textStream) add(token int) (piece engines.Chunk, stopped bool) {
	t.tokens = append(t.tokens, token)
	t.held += t.decoder.Next(token)
	if text, found := t.cut(); found {
		return t.piece(text), true
	}
	keep := t.suspect()
	if keep == len(t.held) {
		return engines.Chunk{}, false
	}
	text, rest := t.held[:len(t.held)-keep], t.held[len(t.held)-keep:]
	piece = t.piece(text)
	t.held = rest
	return piece, false
}

// end is the last piece; what was held back turned out to be no stop sequence,
// unless the rest of a broken character completes one.
func (t *textStream) end() (piece engines.Chunk, stopped bool) {
	t.held += t.decoder.Rest()
	text, found := t.cut()
	return t.piece(text), found
}

// piece hands out text with the tokens since the last piece.
func (t *textStream) piece(text string) engines.Chunk {
	c := engines.Chunk{Text: text, Tokens: t.tokens}
	t.held, t.tokens = "", nil
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
