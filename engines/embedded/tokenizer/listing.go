package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
)

// A Listing is a byte-level vocabulary in the form that other file formats need: the text of each
// token, and the merges in order.
type Listing struct {
	Tokens  []Listed
	Merges  []string // pairs "a b" of token texts, in order of rank
	Pattern string   // llama.cpp's name of the pre-tokenizer: gpt-2, llama-bpe, qwen2 or smollm
}

// A Listed is a token of a Listing. The zero value stands for an ID without a token.
type Listed struct {
	Text           string
	Special, Added bool
}

// listed are llama.cpp's names of pre-tokenizers.
var listed = []struct {
	name string
	cuts []preTokenizer
}{
	{"gpt-2", []preTokenizer{gpt2}}, {"llama-bpe", []preTokenizer{llama3}}, {"qwen2", []preTokenizer{qwen2}},
	{"smollm", []preTokenizer{digits, gpt2}},
}

// Listing returns the vocabulary as a Listing. It returns FailedPrecondition if the vocabulary is
// not byte-level, or if llama.cpp does not have the pre-tokenizer.
func (t *Tokenizer) Listing() (Listing, error) {
	var out Listing
	for _, one := range listed {
		if slices.Equal(one.cuts, t.cuts) {
			out.Pattern = one.name
		}
	}
	if len(t.cuts) == 0 && len(t.bpe.merges) == 0 && !t.escape {
		out.Pattern = "gpt-2" // without merges, the pre-tokenizer has no effect
	}
	if out.Pattern == "" {
		return out, unsupported(vocabularyFile,
			"has a pre-tokenizer that cannot be exported: the patterns of GPT-2, Llama 3, Qwen 2 and SmolLM are supported")
	}
	var v vocabulary
	if err := json.Unmarshal(t.files[vocabularyFile], &v); err != nil {
		return out, fmt.Errorf("tokenizer.json: %w", err)
	}
	out.Tokens = make([]Listed, t.size)
	for text, id := range v.Model.Vocab {
		out.Tokens[id].Text = text
	}
	for id, name := range t.names {
		out.Tokens[id] = Listed{Text: name, Special: !t.textual[id], Added: true}
	}
	for _, pair := range v.Model.Merges {
		out.Merges = append(out.Merges, pair[0]+" "+pair[1])
	}
	return out, nil
}
