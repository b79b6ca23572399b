// Package tokenizer turns text into tokens and back, from the files
// tokenizer.json and tokenizer_config.json of a Hugging Face directory.
//
// It knows vocabularies of byte-pair encoding over bytes, such as those of
// GPT-2, Llama 3 and Qwen, and over characters with bytes for those that are
// missing, such as Llama 2's; and special tokens beside them. Text never becomes
// a special token, however it is spelt; only BOS, EOS, Special, Split and Chat
// yield them.
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

// A Tokenizer is read once and safe for concurrent use.
type Tokenizer struct {
	bpe      bpe
	cuts     []cutter       // how text becomes words, one after another; none leaves it whole
	compose  bool           // text is put into Unicode's normal form C first
	escape   bool           // spaces are written as U+2581, and one comes first
	tokens   [][]byte       // what each token of the vocabulary stands for; nil for none
	specials map[string]int // by spelling
	names    map[int]string // of special tokens, by number
	shown    map[int]bool   // special tokens that are text to a reader
	spelt    *regexp.Regexp // any special token
	read     *regexp.Regexp // any that is text to a reader; nil when there is none
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

// Specials are the spellings of the special tokens that are no text to a
// reader, in order.
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

// Split cuts text at the special tokens that it spells: it yields what lies
// between them with -1, and each of them with its number. Of several that begin
// at one place the longest counts.
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

// spelling matches any of the names, the longest first; nil when there is none.
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

// Encode turns text into tokens. It adds none and parses no special ones but
// those that are text to a reader.
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
	n := len(text)
	if len(t.bpe.merges) > 0 || t.bpe.units != nil || t.read != nil {
		n = len(t.Encode(text))
	}
	if t.bos >= 0 {
		n++
	}
	return n
}

// Decode turns a whole text's tokens into it. Special and unknown tokens give
// nothing, each byte that is no part of a UTF-8 character gives U+FFFD.
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

// A Decoder decodes a stream of tokens into whole UTF-8 characters.
type Decoder struct {
	tokenizer *Tokenizer
	spell     bool   // special tokens too
	pending   []byte // the beginning of a character
}

// NewDecoder makes a decoder that has seen nothing. Special tokens give it
// nothing.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{tokenizer: t} }

// NewSpeller makes a decoder that spells special tokens.
func (t *Tokenizer) NewSpeller() *Decoder { return &Decoder{tokenizer: t, spell: true} }

// Bytes are what a token stands for: those of its spelling for a special one.
func (t *Tokenizer) Bytes(id int) []byte {
	if name, ok := t.names[id]; ok || id < 0 || id >= len(t.tokens) {
		return []byte(name)
	}
	return slices.Clone(t.tokens[id])
}

// Text are the bytes that a token adds to a text; nil for one that is no text
// to a reader.
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

// Next is the text that a token completes; "" when it completes none.
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
