package tokenizer

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A vocabulary has the supported fields of tokenizer.json. Load returns an error for unsupported
// features that affect the tokens.
type vocabulary struct {
	Normalizer    *step     `json:"normalizer"`
	PreTokenizer  *step     `json:"pre_tokenizer"`
	PostProcessor processor `json:"post_processor"`
	AddedTokens   []struct {
		ID         int    `json:"id"`
		Content    string `json:"content"`
		Special    bool   `json:"special"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
	} `json:"added_tokens"`
	Model struct {
		Type         string         `json:"type"`
		Dropout      float64        `json:"dropout"`
		Prefix       string         `json:"continuing_subword_prefix"`
		Suffix       string         `json:"end_of_word_suffix"`
		ByteFallback bool           `json:"byte_fallback"`
		IgnoreMerges bool           `json:"ignore_merges"`
		Vocab        map[string]int `json:"vocab"`
		Merges       []mergedPair   `json:"merges"`
	} `json:"model"`
}

// A step is a normalizer or a pre-tokenizer, or a sequence of steps.
type step struct {
	Type           string `json:"type"`
	Normalizers    []step `json:"normalizers"`
	PreTokenizers  []step `json:"pretokenizers"`
	AddPrefixSpace bool   `json:"add_prefix_space"`
	UseRegex       *bool  `json:"use_regex"`
	Individual     bool   `json:"individual_digits"`
	Behavior       string `json:"behavior"`
	Invert         bool   `json:"invert"`
	Prepend        string `json:"prepend"`
	Content        string `json:"content"`
	Pattern        struct {
		Regex  string
		String string
	} `json:"pattern"`
}

// A processor is a post-processor, which adds special tokens to a text.
type processor struct {
	Type       string      `json:"type"`
	Processors []processor `json:"processors"`
	Single     []struct {
		SpecialToken struct {
			ID string `json:"id"`
		}
	} `json:"single"`
}

// first returns the special token that the processor adds before a text; "" if it adds none.
func (p *processor) first() string {
	for _, one := range append(p.Processors, *p) {
		if one.Type == "TemplateProcessing" && len(one.Single) > 0 {
			return one.Single[0].SpecialToken.ID
		}
	}
	return ""
}

// last returns the special token that the processor adds after a text; "" if it adds none.
func (p *processor) last() string {
	for _, one := range append(p.Processors, *p) {
		if n := len(one.Single); one.Type == "TemplateProcessing" && n > 1 {
			return one.Single[n-1].SpecialToken.ID
		}
	}
	return ""
}

// A mergedPair is a pair of tokens, which the file has as a string with a space or as a list of two
// strings.
type mergedPair [2]string

// UnmarshalJSON accepts a string and a list.
func (m *mergedPair) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '[' {
		return json.Unmarshal(data, (*[2]string)(m))
	}
	var text string
	err := json.Unmarshal(data, &text)
	m[0], m[1], _ = strings.Cut(text, " ")
	return err
}

// Limits of a vocabulary, and of the special tokens that are searched in every text.
const (
	maxTokens     = 1 << 20
	maxMerges     = 1 << 21
	maxAdded      = 10_000 // maximum number of added tokens
	maxAddedToken = 1000   // maximum size of an added token, in bytes
	wordSign      = "\u2581"
)

func (t *Tokenizer) takeModel(v *vocabulary) error {
	m := &v.Model
	switch {
	case m.Type != "BPE":
		return unsupported(vocabularyFile, "has a vocabulary of type %q; the embedded engine supports BPE", m.Type)
	case m.Dropout != 0:
		return unsupported(vocabularyFile, "sets dropout, which the embedded engine does not support")
	case m.Prefix != "" || m.Suffix != "":
		return unsupported(vocabularyFile,
			"sets continuing_subword_prefix or end_of_word_suffix, which the embedded engine does not support")
	case len(m.Vocab) > maxTokens || len(m.Merges) > maxMerges:
		return unsupported(vocabularyFile,
			"has %d tokens and %d merges; the embedded engine supports at most %d tokens and %d merges",
			len(m.Vocab), len(m.Merges), maxTokens, maxMerges)
	}
	return nil
}

// takeNormalizer sets the normalization. The supported ones are none, NFC, and that of Llama 2,
// which puts U+2581 before the text and in place of each space.
func (t *Tokenizer) takeNormalizer(v *vocabulary) error {
	steps := sequence(v.Normalizer)
	if v.Model.ByteFallback {
		if !v.Model.IgnoreMerges && len(steps) == 2 && steps[0].Type == "Prepend" && steps[0].Prepend == wordSign &&
			steps[1].Type == "Replace" && steps[1].Pattern.String == " " && steps[1].Content == wordSign {
			t.escape = true
			return nil
		}
		return unsupported(vocabularyFile,
			"has byte_fallback, which the embedded engine supports only with the normalizers Prepend and Replace of Llama 2 "+
				"and without ignore_merges")
	}
	for _, one := range steps {
		if one.Type != "NFC" {
			return unsupported(vocabularyFile, "has a normalizer of type %q; the embedded engine supports NFC", one.Type)
		}
		t.compose = true
	}
	return nil
}

// takeCuts sets the pre-tokenizers.
func (t *Tokenizer) takeCuts(v *vocabulary) error {
	steps := sequence(v.PreTokenizer)
	if t.escape {
		if len(steps) > 0 {
			return unsupported(vocabularyFile,
				"has byte_fallback and a pre-tokenizer of type %q, a combination that the embedded engine does not support",
				steps[0].Type)
		}
		return nil
	}
	byBytes := false
	for _, one := range steps {
		switch {
		case one.Type == "ByteLevel" && one.AddPrefixSpace:
			return unsupported(vocabularyFile, "sets add_prefix_space, which the embedded engine does not support")
		case one.Type == "ByteLevel":
			if byBytes = true; one.UseRegex == nil || *one.UseRegex {
				t.cuts = append(t.cuts, gpt2)
			}
		case one.Type == "Digits" && one.Individual:
			t.cuts = append(t.cuts, digits)
		case one.Type == "Digits":
			t.cuts = append(t.cuts, numbers)
		case one.Type == "Split" && patterns[one.Pattern.Regex] != 0 &&
			(one.Behavior == "Isolated" && !one.Invert || one.Behavior == "Removed" && one.Invert):
			t.cuts = append(t.cuts, patterns[one.Pattern.Regex])
		case one.Type == "Split":
			return unsupported(vocabularyFile,
				"pre-tokenizes with the pattern %q; the embedded engine supports those of GPT-2, Llama 3 and Qwen 2",
				short(one.Pattern.Regex+one.Pattern.String))
		default:
			return unsupported(vocabularyFile,
				"has a pre-tokenizer of type %q; the embedded engine supports ByteLevel, Digits and Split", one.Type)
		}
	}
	if !byBytes {
		return unsupported(vocabularyFile, "has no ByteLevel pre-tokenizer, which the embedded engine requires")
	}
	return nil
}

// sequence returns the steps of s, which is nil, a single step or a sequence.
func sequence(s *step) []step {
	if s == nil {
		return nil
	}
	if s.Type != "Sequence" {
		return []step{*s}
	}
	return append(s.Normalizers, s.PreTokenizers...)
}

// takeAdded adds the added tokens of v.
func (t *Tokenizer) takeAdded(v *vocabulary) error {
	if len(v.AddedTokens) > maxAdded {
		return unsupported(vocabularyFile, "has %d added tokens; the embedded engine supports at most %d", len(v.AddedTokens),
			maxAdded)
	}
	for _, added := range v.AddedTokens {
		switch {
		case len(added.Content) > maxAddedToken:
			return unsupported(vocabularyFile, "has an added token of %d bytes; the embedded engine supports at most %d",
				len(added.Content), maxAddedToken)
		case added.ID < 0 || added.ID >= maxTokens:
			return unsupported(vocabularyFile, "maps the token %q to the ID %d; IDs must be 0 to %d",
				added.Content, added.ID, maxTokens-1)
		case added.SingleWord || added.LStrip || added.RStrip:
			return unsupported(vocabularyFile,
				"has the token %q with single_word, lstrip or rstrip, which the embedded engine does not support", added.Content)
		}
		t.specials[added.Content], t.names[added.ID] = added.ID, added.Content
		t.textual[added.ID] = !added.Special
		t.size = max(t.size, added.ID+1)
	}
	return nil
}

// takeTokens adds the tokens of v. It returns an error if a byte has no token.
func (t *Tokenizer) takeTokens(v *vocabulary) error {
	for text, id := range v.Model.Vocab {
		if id < 0 || id >= maxTokens {
			return unsupported(vocabularyFile, "maps the token %q to the ID %d; IDs must be 0 to %d",
				short(text), id, maxTokens-1)
		}
		if own, added := t.specials[text]; added && own != id {
			return unsupported(vocabularyFile, "maps the token %q to the IDs %d and %d; a token must have one ID",
				short(text), id, own)
		}
		t.size = max(t.size, id+1)
	}
	t.tokens = make([][]byte, t.size)
	decode, bytes := bytesOf, byteChars()
	if t.escape {
		decode, bytes = textOf, fallbacks()
		t.bpe.units = map[rune]int32{}
	}
	for text, id := range v.Model.Vocab {
		if _, added := t.specials[text]; added {
			continue
		}
		if name, taken := t.names[id]; taken {
			return unsupported(vocabularyFile, "maps %q and %q to the same ID %d", name, short(text), id)
		}
		if t.tokens[id] != nil {
			return unsupported(vocabularyFile, "maps two tokens to the ID %d, one of them %q", id, short(text))
		}
		t.tokens[id] = decode(text)
		if r, size := utf8.DecodeRuneInString(text); t.escape && size == len(text) {
			t.bpe.units[r] = int32(id)
		}
	}
	for b, text := range bytes {
		id, ok := v.Model.Vocab[text]
		if !ok {
			return unsupported(vocabularyFile,
				"has no token for byte %d; the embedded engine requires a token for every byte", b)
		}
		t.bpe.bytes[b] = int32(id)
	}
	return nil
}

// takeMerges adds the merges of v, in order of rank.
func (t *Tokenizer) takeMerges(v *vocabulary) error {
	if v.Model.IgnoreMerges {
		t.bpe.words = make(map[string]int32, len(v.Model.Vocab))
		for id, text := range t.tokens {
			if text != nil {
				t.bpe.words[string(text)] = int32(id)
			}
		}
	}
	if len(v.Model.Merges) == 0 {
		return nil
	}
	t.bpe.merges = make(map[uint64]merged, len(v.Model.Merges))
	for rank, pair := range v.Model.Merges {
		left, ok1 := v.Model.Vocab[pair[0]]
		right, ok2 := v.Model.Vocab[pair[1]]
		token, ok3 := v.Model.Vocab[pair[0]+pair[1]]
		if !ok1 || !ok2 || !ok3 {
			return unsupported(vocabularyFile, "merges %q and %q, but lacks one of these tokens or the merged token",
				short(pair[0]),
				short(pair[1]))
		}
		key := pairOf(int32(left), int32(right))
		if _, twice := t.bpe.merges[key]; !twice {
			t.bpe.merges[key] = merged{int32(rank), int32(token)}
		}
	}
	return nil
}

// byteChars returns the characters that represent the bytes 0 to 255 in a byte-level vocabulary, as
// in GPT-2: printable Latin-1 characters represent themselves, and the characters from U+0100 on
// represent the other bytes, in order.
func byteChars() []string {
	out := make([]string, 256)
	next := rune(256)
	for b := range rune(256) {
		if b >= '!' && b <= '~' || b >= '¡' && b <= '¬' || b >= '®' {
			out[b] = string(b)
			continue
		}
		out[b] = string(next)
		next++
	}
	return out
}

// bytesOf returns the bytes of a token of a byte-level vocabulary. If its text has a character that
// represents no byte, bytesOf returns the text in UTF-8.
func bytesOf(text string) []byte {
	out := make([]byte, 0, len(text))
	for _, r := range text {
		b, ok := byteOf[r]
		if !ok {
			return []byte(text)
		}
		out = append(out, b)
	}
	return out
}

var byteOf = func() map[rune]byte {
	out := map[rune]byte{}
	for b, text := range byteChars() {
		r, _ := utf8.DecodeRuneInString(text)
		out[r] = byte(b)
	}
	return out
}()

// fallbacks returns the texts of the tokens for the bytes 0 to 255 in a character-level vocabulary.
func fallbacks() []string {
	out := make([]string, 256)
	for b := range out {
		out[b] = "<0x" + strings.ToUpper(strconv.FormatInt(int64(b)+0x100, 16)[1:]) + ">"
	}
	return out
}

// textOf returns the bytes of a token of a character-level vocabulary.
func textOf(text string) []byte {
	if len(text) == 6 && strings.HasPrefix(text, "<0x") && text[5] == '>' {
		if b, err := strconv.ParseUint(text[3:5], 16, 8); err == nil {
			return []byte{byte(b)}
		}
	}
	return bytes.ReplaceAll([]byte(text), []byte(wordSign), []byte(" "))
}

// short shortens a text from an uploaded file for an error message.
func short(text string) string {
	if len(text) > 200 {
		return strings.ToValidUTF8(text[:200], "") + "…"
	}
	return text
}
