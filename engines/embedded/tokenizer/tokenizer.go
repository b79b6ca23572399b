// Package tokenizer converts text to tokens and back, from the files tokenizer.json and
// tokenizer_config.json of a Hugging Face directory.
//
// It supports byte-level byte-pair encoding, as of GPT-2, Llama 3 and Qwen, and character-level
// byte-pair encoding with byte fallback, as of Llama 2, with special tokens. Text is never
// encoded as a special token; only BOS, EOS, Special, Split and Chat produce them.
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

// A Tokenizer is immutable and safe for concurrent use.
type Tokenizer struct {
	bpe      bpe
	cuts     []cutter       // pre-tokenizers, applied in order
	compose  bool           // normalize text to NFC first
	escape   bool           // write spaces as U+2581, and prepend one
	tokens   [][]byte       // bytes of each token of the vocabulary; nil for none
	specials map[string]int // by spelling
	names    map[int]string // of special tokens by ID
	shown    map[int]bool   // special tokens that decode to text
	spelt    *regexp.Regexp // matches any special token
	read     *regexp.Regexp // matches those that decode to text; nil if there are none
	size     int
	bos, eos int // -1 if absent
	chat     bool
	files    map[string][]byte // as read
}

// VocabSize is the largest token ID plus one.
func (t *Tokenizer) VocabSize() int { return t.size }

// BOS is the token at the beginning of every text, -1 if the model has none.
func (t *Tokenizer) BOS() int { return t.bos }

// EOS is the token at the end of an answer, -1 if the model has none.
func (t *Tokenizer) EOS() int { return t.eos }

// Special returns the ID of a special token ("<|end|>"), -1 if it does not exist.
func (t *Tokenizer) Special(name string) int {
	if id, ok := t.specials[name]; ok {
		return id
	}
	return -1
}

// Specials returns the special tokens that do not decode to text, sorted.
func (t *Tokenizer) Specials() []string {
	var names []string
	for name, id := range t.specials {
		if !t.shown[id] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Split splits text at special tokens. It yields the text between them with -1, and each
// special token with its ID. The longest match wins.
func (t *Tokenizer) Split(text string) iter.Seq2[string, int] { return t.cutAt(t.spelt, text) }

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

// spelling matches any of names, the longest first; nil if there are none.
func spelling(names []string) *regexp.Regexp {
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

// Encode encodes text. It neither adds special tokens nor parses them, except those that decode
// to text.
func (t *Tokenizer) Encode(text string) []int {
	ids := make([]int, 0, len(text)/3+1)
	for plain, id := range t.cutAt(t.read, text) {
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

func (t *Tokenizer) encode(ids []int, text string, cuts []cutter) []int {
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

// Prompt encodes the text that a model continues: BOS, if there is one, and text.
func (t *Tokenizer) Prompt(text string) []int {
	ids := t.Encode(text)
	if t.bos >= 0 {
		ids = append([]int{t.bos}, ids...)
	}
	return ids
}

// Count is the length of Prompt(text).
func (t *Tokenizer) Count(text string) int {
	n := len(text)
	if len(t.bpe.merges) > 0 || t.bpe.units != nil || t.read != nil {
		n = len(t.Encode(text))
	}
	if t.bos >= 0 {
		n++
	}
	return n
}

// Decode decodes the tokens of a complete text. Special and unknown tokens decode to nothing,
// each byte that is not part of a UTF-8 character to U+FFFD.
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

// A Decoder decodes a stream of tokens into complete UTF-8 characters.
type Decoder struct {
	tokenizer *Tokenizer
	spell     bool   // include special tokens
	pending   []byte // incomplete character
}

// NewDecoder returns a decoder that drops special tokens.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{tokenizer: t} }

// NewSpeller returns a decoder that includes special tokens.
func (t *Tokenizer) NewSpeller() *Decoder { return &Decoder{tokenizer: t, spell: true} }

// Bytes returns the bytes of a token; for a special one those of its spelling.
func (t *Tokenizer) Bytes(id int) []byte {
	if name, ok := t.names[id]; ok || id < 0 || id >= len(t.tokens) {
		return []byte(name)
	}
	return slices.Clone(t.tokens[id])
}

// Text returns the bytes that a token adds to a text; nil if it does not decode to text.
func (t *Tokenizer) Text(id int) []byte {
	name, special := t.names[id]
	switch {
	case special && t.shown[id]:
		return []byte(name)
	case special || id < 0 || id >= len(t.tokens):
		return nil
	}
	return slices.Clone(t.tokens[id])
}

// Next decodes a token and returns the text that it completes.
func (d *Decoder) Next(id int) string {
	t := d.tokenizer
	if name, ok := t.names[id]; ok {
		if !d.spell && !t.shown[id] {
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

// Rest flushes the decoder: U+FFFD for each byte of an incomplete character.
func (d *Decoder) Rest() string {
	var text []byte
	for range d.pending {
		text = utf8.AppendRune(text, utf8.RuneError)
	}
	d.pending = nil
	return string(text)
}
