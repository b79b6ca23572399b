package serve

import (
	"strings"
	"unicode/utf8"

	"anneal/engines"
	"anneal/engines/embedded/tokenizer"
)

// A detokenizer turns tokens into the chunks that a client receives. A chunk has complete UTF-8
// characters, without stop sequences and the text after them.
type detokenizer struct {
	decoder *tokenizer.Decoder
	raw     *tokenizer.Decoder // also decodes special tokens; nil unless raw output is requested
	stops   []string
	pending string // withheld text, which may be the beginning of a stop sequence
	decoded int    // characters of all tokens so far
	sent    int    // characters of all chunks so far

	tokens   []int // tokens since the last chunk; rawText and logprobs belong to them
	rawText  string
	logprobs []engines.Logprob
}

// add decodes a token. It returns the text that can be sent, or an empty chunk if all text is
// withheld. stopped reports whether the token completes a stop sequence; the chunk then ends
// with the text before the stop sequence.
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

// flush returns the last chunk. stopped reports whether the rest of an incomplete character
// completes a stop sequence.
func (t *detokenizer) flush() (chunk engines.Chunk, stopped bool) {
	t.pending += t.decoder.Rest()
	text, found := t.cut()
	return t.last(text), found
}

// addLogprob records the logprob of the token that is added next.
func (t *detokenizer) addLogprob(one engines.Logprob) {
	one.Offset = t.decoded
	t.logprobs = append(t.logprobs, one)
}

// last returns the final chunk. The offsets of tokens whose text was cut off are the length of
// the text.
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

// chunk returns a chunk of text and the tokens since the last chunk.
func (t *detokenizer) chunk(text string) engines.Chunk {
	c := engines.Chunk{Text: text, Tokens: t.tokens, Raw: t.rawText, Logprobs: t.logprobs}
	t.pending, t.tokens, t.rawText, t.logprobs = "", nil, "", nil
	t.sent += utf8.RuneCountInString(text)
	return c
}

// cut returns the withheld text before its first stop sequence. found is false, and text is all
// of the withheld text, if it has no stop sequence.
func (t *detokenizer) cut() (text string, found bool) {
	first := len(t.pending)
	for _, stop := range t.stops {
		if at := strings.Index(t.pending, stop); at >= 0 {
			first, found = min(first, at), true
		}
	}
	return t.pending[:first], found
}

// partialStop returns the length of the longest suffix of the withheld text that begins a stop
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
