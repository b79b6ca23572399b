package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
)

// A Listing is a byte-level vocabulary as other programs' files write it: one
// spelling for each token, and the merges in their order.
type Listing struct {
	Tokens  []Listed
	Merges  []string // "a b"
	Pattern string   // how text is cut: gpt-2, llama-bpe, qwen2 or smollm, as llama.cpp calls them
}

// Listed is a token of a Listing. Numbers without a token are neither.
type Listed struct {
	Spelling       string
	Special, Added bool
}

// listed are the ways of cutting text that have a name elsewhere.
var listed = []struct {
	name string
	cuts []cutter
}{{"gpt-2", []cutter{gpt2}}, {"llama-bpe", []cutter{llama3}}, {"qwen2", []cutter{qwen2}}, {"smollm", []cutter{digits, gpt2}}}

// Listing lists the vocabulary. One that has no such form is a
// FailedPrecondition fault.
func (t *Tokenizer) Listing() (Listing, error) {
	var out Listing
	for _, one := range listed {
		if slices.Equal(one.cuts, t.cuts) {
			out.Pattern = one.name
		}
	}
	if len(t.cuts) == 0 && len(t.bpe.merges) == 0 && !t.escape {
		out.Pattern = "gpt-2" // without merges every cut gives the same tokens
	}
	if out.Pattern == "" {
		return out, fault(vocabularyFile, "cuts text in a way that has no name in other programs' files: byte-level vocabularies with the patterns of GPT-2, Llama 3, Qwen 2 and SmolLM do")
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
