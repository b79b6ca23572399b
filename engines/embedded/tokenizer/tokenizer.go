// Package tokenizer turns text into tokens and back, from the files
// tokenizer.json and tokenizer_config.json of a Hugging Face directory.
//
// It knows byte-level vocabularies without merges: one token for each byte,
// and special tokens beside them. Text never becomes a special token, however
// it is spelt; only BOS, EOS, Special and Chat yield them.
package tokenizer

import (
	"unicode/utf8"
)

// A Tokenizer is read once and safe for concurrent use.
type Tokenizer struct {
	ids      [256]int       // of each byte
	bytes    map[int]byte   // of each token that is a byte
	specials map[string]int // by spelling
	size     int
	bos, eos int // -1 when there is none
	chat     bool
	files    map[string][]byte // as they were read, and as Save writes them
}

// VocabSize is one more than the greatest token.
func (t *Tokenizer) VocabSize() int { return t.size }

// BOS is the token that every text begins with, -1 when the model has none.
func (t *Tokenizer) BOS() int { return t.bos }

// EOS is the token that ends an answer, -1 when the model has none.
func (t *Tokenizer) EOS() int { return t.eos }

// Special is the token spelt so in tokenizer.json ("<|end|>"), -1 when there
// is none.
func (t *Tokenizer) Special(name string) int {
	if id, ok := t.specials[name]; ok {
		return id
	}
	return -1
}

// Encode turns text into tokens. It adds none and parses no special ones.
func (t *Tokenizer) Encode(text string) []int {
	ids := make([]int, len(text))
	for i := range len(text) {
		ids[i] = t.ids[text[i]]
	}
	return ids
}

// Prompt is what a model continues: BOS, if there is one, and the text.
func (t *Tokenizer) Prompt(text string) []int {
	ids := t.Encode(text)
	if t.bos >= 0 {
		ids = append([]int{t.bos}, ids...)
	}
	return ids
}

// Count is the length of Prompt(text).
func (t *Tokenizer) Count(text string) int {
	if t.bos >= 0 {
		return len(text) + 1
	}
	return len(text)
}

// Decode turns tokens into text. Special and unknown tokens give nothing, each
// byte that is no part of a UTF-8 character gives U+FFFD.
func (t *Tokenizer) Decode(ids []int) string {
	d := t.NewDecoder()
	var text []byte
	for _, id := range ids {
		text = append(text, d.Next(id)...)
	}
	return string(text) + d.Rest()
}

// A Decoder decodes a stream of tokens into whole UTF-8 characters.
type Decoder struct {
	tokenizer *Tokenizer
	pending   []byte // the beginning of a character
}

// NewDecoder makes a decoder that has seen nothing.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{tokenizer: t} }

// Next is the text that a token completes; "" when it completes none.
func (d *Decoder) Next(id int) string {
	b, ok := d.tokenizer.bytes[id]
	if !ok {
		return ""
	}
	d.pending = append(d.pending, b)
	var text []byte
	for len(d.pending) > 0 && utf8.FullRune(d.pending) {
		r, n := utf8.DecodeRune(d.pending)
		text = utf8.AppendRune(text, r)
		d.pending = d.pending[n:]
	}
	return string(text)
}

// Rest is what the end of the stream leaves over: U+FFFD for each byte of a
// character that did not come to its end.
func (d *Decoder) Rest() string {
	var text []byte
	for range d.pending {
		text = utf8.AppendRune(text, utf8.RuneError)
	}
	d.pending = nil
	return string(text)
}
