package serve

import (
	"strings"
	"unicode/utf8"

	"anneal/engines"
	"anneal/engines/embedded/tokenizer"
)

// A detokenizer converts tokens to the chunks that a client receives. Chunks contain complete UTF-8
// characters, and neither a stop sequence nor the text after it.
type detokenizer struct {
	decoder *tokenizer.Decoder
	raw     *tokenizer.Decoder // decoder that also decodes special tokens; nil unless raw output is requested
	stops   []string
	pending string // withheld text, which may begin a stop sequence
	decoded int    // number of characters of all tokens so far
	sent    int    // number of characters of all chunks so far

	tokens   []int // tokens since the last chunk, to which rawText and logprobs belong
	rawText  string
	logprobs []engines.Logprob
}

// add decodes a token, and returns a chunk with the text that can be sent, which is empty if all
// text is withheld. If the token completes a stop sequence, stopped is true, and the chunk ends
// before the stop sequence.
func (t *detokenizer) add(token int) (chunk engines.Chunk, stopped bool) {
	t.tokens = append(t.tokens, token)
	text := t.decoder.Next(token)
	t.pending += text
	t.decoded += utf8.RuneCountInString(text)
	if t.raw != nil {
		t.rawText += t.raw.Next(token)
	}
	if text, found := t.cut(); found {
		return t.last(text), true
	}
	keep := t.partialStop()
	if keep == len(t.pending) {
		return engines.Chunk{}, false
	}
	now, rest := t.pending[:len(t.pending)-keep], t.pending[len(t.pending)-keep:]
	chunk = t.chunk(now)
	t.pending = rest
	return chunk, false
}

// flush returns the last chunk, with all withheld text. stopped reports whether an incomplete
// character at the end completes a stop sequence.
func (t *detokenizer) flush() (chunk engines.Chunk, stopped bool) {
	t.pending += t.decoder.Rest()
	text, found := t.cut()
	return t.last(text), found
}

// addLogprob records the log-probability of the token that is added next.
func (t *detokenizer) addLogprob(one engines.Logprob) {
	one.Offset = t.decoded
	t.logprobs = append(t.logprobs, one)
}

// last returns the last chunk, with the given text. Tokens whose text was cut off get the length of
// the text as their offset.
func (t *detokenizer) last(text string) engines.Chunk {
	if t.raw != nil {
		t.rawText += t.raw.Rest()
	}
	chunk := t.chunk(text)
	for i := range chunk.Logprobs {
		chunk.Logprobs[i].Offset = min(chunk.Logprobs[i].Offset, t.sent)
	}
	return chunk
}

// chunk returns a chunk with the given text and the tokens since the last chunk.
func (t *detokenizer) chunk(text string) engines.Chunk {
	c := engines.Chunk{Text: text, Tokens: t.tokens, Raw: t.rawText, Logprobs: t.logprobs}
	t.pending, t.tokens, t.rawText, t.logprobs = "", nil, "", nil
	t.sent += utf8.RuneCountInString(text)
	return c
}

// cut returns the withheld text before its first stop sequence. If it has none, found is false, and
// text is all withheld text.
func (t *detokenizer) cut() (text string, found bool) {
	first := len(t.pending)
	for _, stop := range t.stops {
		if at := strings.Index(t.pending, stop); at >= 0 {
			first, found = min(first, at), true
		}
	}
	return t.pending[:first], found
}

// partialStop returns the length of the longest end of the withheld text that may begin a stop
// sequence.
func (t *detokenizer) partialStop() int {
	longest := 0
	for _, stop := range t.stops {
		for n := min(len(stop)-1, len(t.pending)); n > longest; n-- {
			if strings.HasSuffix(t.pending, stop[:n]) {
				longest = n
			}
		}
	}
	return longest
}
