package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
)

// A Listing is a byte-level vocabulary in the form of other file formats: a spelling for each
// token, and the merges in order.
type Listing struct {
	Tokens  []Listed
	Merges  []string // "a b"
	Pattern string   // pre-tokenizer in llama.cpp's names: gpt-2, llama-bpe, qwen2 or smollm
}

// Listed is a token of a Listing. IDs without a token have neither field.
type Listed struct {
	Spelling       string
	Special, Added bool
}

// listed are llama.cpp's names of pre-tokenizers.
var listed = []struct {
	name string
	cuts []cutter
}{
	{"gpt-2", []cutter{gpt2}}, {"llama-bpe", []cutter{llama3}}, {"qwen2", []cutter{qwen2}},
	{"smollm", []cutter{digits, gpt2}},
}

// Listing returns the vocabulary. The error is FailedPrecondition for vocabularies that have no
// such form.
func (t *Tokenizer) Listing() (Listing, error) {
	var out Listing
	for _, one := range listed {
		if slices.Equal(one.cuts, t.cuts) {
			out.Pattern = one.name
		}
	}
	if len(t.cuts) == 0 && len(t.bpe.merges) == 0 && !t.escape {
		out.Pattern = "gpt-2" // without merges the pre-tokenizer has no effect
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
		out.Tokens[id] = Listed{Spelling: name, Special: !t.shown[id], Added: true}
	}
	for _, pair := range v.Model.Merges {
		out.Merges = append(out.Merges, pair[0]+" "+pair[1])
	}
	return out, nil
}
