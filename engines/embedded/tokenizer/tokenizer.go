// Package tokenizer converts text to tokens and back, from the files tokenizer.json and
// tokenizer_config.json of a Hugging Face directory.
//
// It supports byte-level byte-pair encoding, as in GPT-2, Llama 3 and Qwen, and character-level
// byte-pair encoding with byte fallback, as in Llama 2, with special tokens. Encode encodes special
// tokens in a text as ordinary text, except those that decode to text. Other methods, such as
// Prompt, Split and Chat, produce special tokens.
package tokenizer

import (
	"cmp"
	"iter"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A Tokenizer converts text to tokens and back. It is immutable and safe for concurrent use.
type Tokenizer struct {
	bpe            bpe
	cuts           []preTokenizer // pre-tokenizers, which are applied in order
	compose        bool           // normalize text to NFC first
	escape         bool           // put U+2581 before a text and in place of each space
	tokens         [][]byte       // bytes of each token, by ID; nil for an ID without a token
	specials       map[string]int // IDs of special tokens, by their text
	names          map[int]string // texts of special tokens, by ID
	textual        map[int]bool   // special tokens that decode to text, by ID
	specialPattern *regexp.Regexp // matches the text of any special token
	textualPattern *regexp.Regexp // matches the texts of special tokens that decode to text; nil if there are none
	size           int
	bos, eos       int // tokens at the beginning and the end of a text; -1 if the model has none
	last           int // special token after a complete text; -1 if there is none
	chat           bool
	files          map[string][]byte // contents of the files from which the tokenizer was loaded, by name
}

// VocabSize returns the largest token ID plus one.
func (t *Tokenizer) VocabSize() int { return t.size }

// BOS returns the special token at the beginning of every text; -1 if texts begin without one.
func (t *Tokenizer) BOS() int { return t.bos }

// EOS returns the special token at the end of a completion; -1 if the model has none.
func (t *Tokenizer) EOS() int { return t.eos }

// Special returns the ID of a special token such as "<|end|>"; -1 if the vocabulary does not have
// it.
func (t *Tokenizer) Special(name string) int {
	if id, ok := t.specials[name]; ok {
		return id
	}
	return -1
}

// Specials returns the texts of the special tokens that do not decode to text, sorted.
func (t *Tokenizer) Specials() []string {
	var names []string
	for name, id := range t.specials {
		if !t.textual[id] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Split splits text at special tokens, of which the longest match wins. It yields each special
// token with its ID, and each text between special tokens with -1.
func (t *Tokenizer) Split(text string) iter.Seq2[string, int] { return t.cutAt(t.specialPattern, text) }

func (t *Tokenizer) cutAt(spelt *regexp.Regexp, text string) iter.Seq2[string, int] {
	return func(yield func(string, int) bool) {
		at := 0
		if spelt != nil {
			for _, found := range spelt.FindAllStringIndex(text, -1) {
				if found[0] > at && !yield(text[at:found[0]], -1) {
					return
				}
				if at = found[1]; !yield(text[found[0]:at], t.specials[text[found[0]:at]]) {
					return
				}
			}
		}
		if at < len(text) {
			yield(text[at:], -1)
		}
	}
}

// anyOf returns a regular expression that matches any of names, the longest first; nil if names is
// empty.
func anyOf(names []string) *regexp.Regexp {
	var parts []string
	for _, name := range names {
		if name != "" {
			parts = append(parts, regexp.QuoteMeta(name))
		}
	}
	if len(parts) == 0 {
		return nil
	}
	slices.SortFunc(parts, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	return regexp.MustCompile(strings.Join(parts, "|"))
}

// Encode encodes text. It produces no special tokens, except those that decode to text.
func (t *Tokenizer) Encode(text string) []int {
	ids := make([]int, 0, len(text)/3+1)
	for plain, id := range t.cutAt(t.textualPattern, text) {
		if id >= 0 {
			ids = append(ids, id)
			continue
		}
		if t.compose {
			plain = norm.NFC.String(plain)
		}
		if t.escape {
			plain = wordSign + strings.ReplaceAll(plain, " ", wordSign)
		}
		ids = t.encode(ids, plain, t.cuts)
	}
	return ids
}

func (t *Tokenizer) encode(ids []int, text string, cuts []preTokenizer) []int {
	if len(cuts) == 0 {
		return t.bpe.append(ids, text)
	}
	for len(text) > 0 {
		n := cuts[0].next(text)
		ids = t.encode(ids, text[:n], cuts[1:])
		text = text[n:]
	}
	return ids
}

// Prompt encodes a text that the model is to continue. The result begins with BOS, if the model has
// one.
func (t *Tokenizer) Prompt(text string) []int {
	ids := t.Encode(text)
	if t.bos >= 0 {
		ids = append([]int{t.bos}, ids...)
	}
	return ids
}

// EncodeWithSpecial encodes a complete text, as an embedding model receives it: with all special tokens that
// the post-processor of tokenizer.json adds.
func (t *Tokenizer) EncodeWithSpecial(text string) []int {
	ids := t.Prompt(text)
	if t.last >= 0 {
		ids = append(ids, t.last)
	}
	return ids
}

// Count returns the number of tokens of Prompt(text).
func (t *Tokenizer) Count(text string) int {
	n := len(text)
	if len(t.bpe.merges) > 0 || t.bpe.units != nil || t.textualPattern != nil {
		n = len(t.Encode(text))
	}
	if t.bos >= 0 {
		n++
	}
	return n
}

// Decode decodes the tokens of a complete text. Special and unknown tokens add nothing. Each byte
// that is not part of a UTF-8 character becomes U+FFFD.
func (t *Tokenizer) Decode(ids []int) string {
	d := t.NewDecoder()
	var text []byte
	for _, id := range ids {
		text = append(text, d.Next(id)...)
	}
	whole := string(text) + d.Rest()
	if t.escape {
		whole = strings.TrimPrefix(whole, " ")
	}
	return whole
}

// A Decoder decodes a stream of tokens to complete UTF-8 characters.
type Decoder struct {
	tokenizer *Tokenizer
	raw       bool   // include the texts of special tokens
	pending   []byte // bytes of an incomplete character
}

// NewDecoder returns a decoder that leaves out special tokens.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{tokenizer: t} }

// NewRawDecoder returns a decoder that includes the texts of special tokens.
func (t *Tokenizer) NewRawDecoder() *Decoder { return &Decoder{tokenizer: t, raw: true} }

// Bytes returns the bytes of a token; those of its text for a special token.
func (t *Tokenizer) Bytes(id int) []byte {
	if name, ok := t.names[id]; ok || id < 0 || id >= len(t.tokens) {
		return []byte(name)
	}
	return slices.Clone(t.tokens[id])
}

// Text returns the bytes that a token adds to a decoded text; nil if it adds none.
func (t *Tokenizer) Text(id int) []byte {
	name, special := t.names[id]
	switch {
	case special && t.textual[id]:
		return []byte(name)
	case special || id < 0 || id >= len(t.tokens):
		return nil
	}
	return slices.Clone(t.tokens[id])
}

// Next decodes a token, and returns the text that it completes.
func (d *Decoder) Next(id int) string {
	t := d.tokenizer
	if name, ok := t.names[id]; ok {
		if !d.raw && !t.textual[id] {
			return ""
		}
		return d.Rest() + name
	}
	if id < 0 || id >= len(t.tokens) {
		return ""
	}
	d.pending = append(d.pending, t.tokens[id]...)
	var text []byte
	for len(d.pending) > 0 && utf8.FullRune(d.pending) {
		r, n := utf8.DecodeRune(d.pending)
		text = utf8.AppendRune(text, r)
		d.pending = d.pending[n:]
	}
	return string(text)
}

// Rest ends the stream. It returns U+FFFD for each byte of an incomplete character.
func (d *Decoder) Rest() string {
	var text []byte
	for range d.pending {
		text = utf8.AppendRune(text, utf8.RuneError)
	}
	d.pending = nil
	return string(text)
}
