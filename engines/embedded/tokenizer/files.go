package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"anneal/domain"
)

const (
	vocabularyFile = "tokenizer.json"
	configFile     = "tokenizer_config.json"
	maxFile        = 64 << 20
)

// vocabulary is the part of tokenizer.json that is understood. What would
// change the tokens and is not, supported refuses.
type vocabulary struct {
	Normalizer   json.RawMessage `json:"normalizer"`
	PreTokenizer struct {
		Type           string `json:"type"`
		AddPrefixSpace bool   `json:"add_prefix_space"`
	} `json:"pre_tokenizer"`
	AddedTokens []struct {
		ID      int    `json:"id"`
		Content string `json:"content"`
		Special bool   `json:"special"`
	} `json:"added_tokens"`
	Model struct {
		Type   string          `json:"type"`
		Vocab  json.RawMessage `json:"vocab"`
		Merges []any           `json:"merges"`
	} `json:"model"`
}

// config is the part of tokenizer_config.json that is understood.
type config struct {
	BOS          named `json:"bos_token"`
	EOS          named `json:"eos_token"`
	AddBOS       *bool `json:"add_bos_token"`
	ChatTemplate any   `json:"chat_template"` // text, or several with names
}

// named is a special token: its spelling, or an object with its content.
type named string

// UnmarshalJSON accepts a string, an object or null.
func (n *named) UnmarshalJSON(data []byte) error {
	var object struct {
		Content string `json:"content"`
	}
	if len(data) > 0 && data[0] == '{' {
		err := json.Unmarshal(data, &object)
		*n = named(object.Content)
		return err
	}
	return json.Unmarshal(data, (*string)(n))
}

// Load reads a model directory's tokenizer. One that this package cannot
// honour is a FailedPrecondition fault that says why.
func Load(dir string) (*Tokenizer, error) {
	files := map[string][]byte{}
	for _, name := range []string{vocabularyFile, configFile} {
		data, err := readLimited(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) && name == configFile {
			continue
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fault(name, "is missing from the model directory")
		}
		if err != nil {
			return nil, err
		}
		files[name] = data
	}
	return parse(files)
}

// Save writes the files that the tokenizer was read from.
func (t *Tokenizer) Save(dir string) error {
	for name, data := range t.files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// NewBytes is the shipped model's tokenizer: the bytes 0 to 255, <|bos|> 256,
// <|user|> 257, <|assistant|> 258, <|end|> 259.
func NewBytes() *Tokenizer {
	t, err := parse(map[string][]byte{vocabularyFile: byteVocabulary(), configFile: byteConfig()})
	if err != nil {
		panic(err) // the files are constants
	}
	return t
}

func parse(files map[string][]byte) (*Tokenizer, error) {
	var v vocabulary
	if err := json.Unmarshal(files[vocabularyFile], &v); err != nil {
		return nil, fault(vocabularyFile, "is not a tokenizer: %v", err)
	}
	if err := v.supported(); err != nil {
		return nil, err
	}
	var c config
	if data := files[configFile]; data != nil {
		if err := json.Unmarshal(data, &c); err != nil {
			return nil, fault(configFile, "is not a tokenizer's configuration: %v", err)
		}
	}
	t := &Tokenizer{bytes: map[int]byte{}, specials: map[string]int{}, names: map[int]string{}, shown: map[int]bool{}, bos: -1, eos: -1, files: files}
	if err := t.fill(v); err != nil {
		return nil, err
	}
	for _, one := range []struct {
		name named
		id   *int
	}{{c.BOS, &t.bos}, {c.EOS, &t.eos}} { // which may be the same
		if one.name == "" {
			continue
		}
		if *one.id = t.Special(string(one.name)); *one.id < 0 {
			return nil, fault(configFile, "names the token %q, which %s does not have", one.name, vocabularyFile)
		}
	}
	if c.AddBOS != nil && !*c.AddBOS {
		t.bos = -1
	}
	t.spelt = spelling(slices.Collect(maps.Keys(t.specials)))
	t.chat = c.ChatTemplate == chatTemplate && t.bos >= 0 &&
		t.Special(markUser) >= 0 && t.Special(markAssistant) >= 0 && t.Special(markEnd) >= 0
	return t, nil
}

// supported refuses what would make other tokens than Encode does.
func (v *vocabulary) supported() error {
	switch {
	case v.Model.Type != "BPE":
		return fault(vocabularyFile, "has a vocabulary of type %q; the embedded engine reads byte-level BPE", v.Model.Type)
	case len(v.Model.Merges) > 0:
		return fault(vocabularyFile, "has %d merges; the embedded engine reads vocabularies of single bytes so far", len(v.Model.Merges))
	case v.PreTokenizer.Type != "ByteLevel":
		return fault(vocabularyFile, "has a pre-tokenizer of type %q; the embedded engine reads ByteLevel", v.PreTokenizer.Type)
	case v.PreTokenizer.AddPrefixSpace:
		return fault(vocabularyFile, "sets add_prefix_space, which the embedded engine does not read")
	case len(v.Normalizer) > 0 && string(v.Normalizer) != "null":
		return fault(vocabularyFile, "has a normalizer, which the embedded engine does not read")
	}
	return nil
}

// Bounds of what every text is searched for.
const (
	maxAdded    = 10_000 // tokens
	maxSpelling = 1000   // bytes of one
)

// fill takes over the vocabulary, which must have every byte once.
func (t *Tokenizer) fill(v vocabulary) error {
	if len(v.AddedTokens) > maxAdded {
		return fault(vocabularyFile, "has %d added tokens; the embedded engine reads %d", len(v.AddedTokens), maxAdded)
	}
	for _, added := range v.AddedTokens {
		if len(added.Content) > maxSpelling {
			return fault(vocabularyFile, "spells an added token with %d bytes; the embedded engine reads %d", len(added.Content), maxSpelling)
		}
		if added.ID < 0 || added.ID >= 1<<20 {
			return fault(vocabularyFile, "gives the token %q the number %d", added.Content, added.ID)
		}
		t.specials[added.Content], t.names[added.ID] = added.ID, added.Content
		t.shown[added.ID] = !added.Special
		t.size = max(t.size, added.ID+1)
	}
	var vocab map[string]int
	if err := json.Unmarshal(v.Model.Vocab, &vocab); err != nil {
		return fault(vocabularyFile, "has no readable vocabulary: %v", err)
	}
	for b, spelling := range spellings() {
		id, ok := vocab[spelling]
		if !ok || id < 0 || id >= 1<<20 {
			return fault(vocabularyFile, "has no token for byte %d", b)
		}
		if _, taken := t.bytes[id]; taken {
			return fault(vocabularyFile, "gives two bytes the number %d", id)
		}
		t.ids[b], t.bytes[id] = id, byte(b)
		t.size = max(t.size, id+1)
		delete(vocab, spelling)
	}
	for spelling, id := range vocab {
		if own, ok := t.specials[spelling]; !ok || own != id {
			return fault(vocabularyFile, "has the token %q, which is neither a byte nor an added token", spelling)
		}
	}
	for name, id := range t.specials {
		if _, taken := t.bytes[id]; taken {
			return fault(vocabularyFile, "gives %q and a byte the same number %d", name, id)
		}
	}
	return nil
}

// spellings are the characters that stand for the bytes 0 to 255 in a
// byte-level vocabulary: a printable Latin-1 character for itself, the others
// in order from U+0100 on (as GPT-2's vocabulary began it).
func spellings() []string {
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

// byteVocabulary writes tokenizer.json for NewBytes.
func byteVocabulary() []byte {
	vocab := map[string]int{}
	for b, spelling := range spellings() {
		vocab[spelling] = b
	}
	var added []any
	for i, name := range []string{markBOS, markUser, markAssistant, markEnd} {
		added = append(added, map[string]any{
			"id": 256 + i, "content": name, "special": true,
			"single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
		})
	}
	sequence := map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}}
	bos := map[string]any{"SpecialToken": map[string]any{"id": markBOS, "type_id": 0}}
	return format(map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "normalizer": nil, "added_tokens": added,
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
		"post_processor": map[string]any{
			"type": "TemplateProcessing", "single": []any{bos, sequence},
			"pair": []any{bos, sequence, map[string]any{"Sequence": map[string]any{"id": "B", "type_id": 1}}},
			"special_tokens": map[string]any{
				markBOS: map[string]any{"id": markBOS, "ids": []int{256}, "tokens": []string{markBOS}},
			},
		},
		"decoder": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
		"model": map[string]any{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []any{},
		},
	})
}

// byteConfig writes tokenizer_config.json for NewBytes.
func byteConfig() []byte {
	return format(map[string]any{
		"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": markBOS, "eos_token": markEnd, "add_bos_token": true,
		"clean_up_tokenization_spaces": false, "chat_template": chatTemplate,
	})
}

// format is indented JSON; keys are in order, so the same value gives the same
// bytes.
func format(value any) []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		panic(err) // the values are constants
	}
	return slices.Clip(b.Bytes())
}

func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	if len(data) > maxFile {
		return nil, fault(filepath.Base(path), "is larger than %d bytes", maxFile)
	}
	return data, nil
}

func fault(file, format string, args ...any) error {
	return domain.Faultf(domain.FailedPrecondition, "%s "+format, append([]any{file}, args...)...)
}
