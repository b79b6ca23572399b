package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
)

// A Listing is a byte-level vocabulary in the form that other file formats need: a spelling for
// each token, and the merges in order.
type Listing struct {
	Tokens  []Listed
	Merges  []string // pairs "a b", in order of rank
	Pattern string   // name that llama.cpp gives the pre-tokenizer: gpt-2, llama-bpe, qwen2 or smollm
}

// A Listed is one token of a Listing. The zero value stands for an ID without a token.
type Listed struct {
	Spelling       string
	Special, Added bool
}

// listed maps pre-tokenizers to the names that llama.cpp gives them.
var listed = []struct {
	name string
	cuts []preTokenizer
}{
	{"gpt-2", []preTokenizer{gpt2}}, {"llama-bpe", []preTokenizer{llama3}}, {"qwen2", []preTokenizer{qwen2}},
	{"smollm", []preTokenizer{digits, gpt2}},
}

// Listing returns the vocabulary as a Listing. It returns a FailedPrecondition error if the
// vocabulary is not byte-level or has an unknown pre-tokenizer.
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
	for spelling, id := range v.Model.Vocab {
		out.Tokens[id].Spelling = spelling
	}
	for id, name := range t.names {
		out.Tokens[id] = Listed{Spelling: name, Special: !t.textual[id], Added: true}
	}
	for _, pair := range v.Model.Merges {
		out.Merges = append(out.Merges, pair[0]+" "+pair[1])
	}
	return out, nil
}
