// Package tokenizer converts text to tokens and back, from the files tokenizer.json and
// tokenizer_config.json of a Hugging Face directory.
//
// It supports byte-level byte-pair encoding, as in GPT-2, Llama 3 and Qwen, and character-level
// byte-pair encoding with byte fallback, as in Llama 2, with special tokens. Encode does not parse
// special tokens in text, except those that decode to text. Other methods, such as Prompt, Split
// and Chat, add special tokens.
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
	cuts     []preTokenizer // pre-tokenizers, applied in order
	compose  bool           // text is normalized to NFC first
	escape   bool           // spaces are written as U+2581, and the text begins with one
	tokens   [][]byte       // bytes of each token of the vocabulary; nil for an ID without a token
	specials map[string]int // special tokens by spelling
	names    map[int]string // spellings of special tokens by ID
	textual  map[int]bool   // special tokens that decode to text
	spelt    *regexp.Regexp // matches any special token
	read     *regexp.Regexp // matches special tokens that decode to text; nil without such tokens
	size     int
	bos, eos int // -1 if the model has none
	last     int // token after a complete text; -1 if there is none
	chat     bool
	files    map[string][]byte // files from which the tokenizer was read, by name
}

// VocabSize returns the largest token ID plus one.
func (t *Tokenizer) VocabSize() int { return t.size }

// BOS returns the token at the beginning of every text, -1 if texts begin without one.
func (t *Tokenizer) BOS() int { return t.bos }

// EOS returns the token at the end of an answer, -1 if the model has none.
func (t *Tokenizer) EOS() int { return t.eos }

// Special returns the ID of a special token such as "<|end|>", -1 if the vocabulary lacks the
// token.
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
		if !t.textual[id] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Split splits text at special tokens, the longest match first. It yields each special token
// with its ID, and each text between special tokens with -1.
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

// spelling returns a regular expression that matches any of names, the longest first; nil if
// names is empty.
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

// Prompt encodes the text that a model continues. The result begins with BOS if the model has
// one.
func (t *Tokenizer) Prompt(text string) []int {
	ids := t.Encode(text)
	if t.bos >= 0 {
		ids = append([]int{t.bos}, ids...)
	}
	return ids
}

// Whole encodes a complete text with all special tokens that the post-processor of tokenizer.json
// adds, as an embedding model receives it.
func (t *Tokenizer) Whole(text string) []int {
	ids := t.Prompt(text)
	if t.last >= 0 {
		ids = append(ids, t.last)
	}
	return ids
}

// Count returns the length of Prompt(text) in tokens.
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

// Decode decodes the tokens of a complete text. Special and unknown tokens add nothing to the
// text. Each byte that is not part of a UTF-8 character becomes U+FFFD.
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
	pending   []byte // bytes of an incomplete character
}

// NewDecoder returns a decoder that drops special tokens.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{tokenizer: t} }

// NewSpeller returns a decoder that includes special tokens.
func (t *Tokenizer) NewSpeller() *Decoder { return &Decoder{tokenizer: t, spell: true} }

// Bytes returns the bytes of a token. The bytes of a special token are those of its spelling.
func (t *Tokenizer) Bytes(id int) []byte {
	if name, ok := t.names[id]; ok || id < 0 || id >= len(t.tokens) {
		return []byte(name)
	}
	return slices.Clone(t.tokens[id])
}

// Text returns the bytes that a token adds to a text, nil if the token does not decode to text.
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

// Next decodes a token and returns the text that it completes.
func (d *Decoder) Next(id int) string {
	t := d.tokenizer
	if name, ok := t.names[id]; ok {
		if !d.spell && !t.textual[id] {
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

// Rest flushes the decoder. It returns U+FFFD for each byte of an incomplete character.
func (d *Decoder) Rest() string {
	var text []byte
	for range d.pending {
		text = utf8.AppendRune(text, utf8.RuneError)
	}
	d.pending = nil
	return string(text)
}
