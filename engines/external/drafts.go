package external

import (
	"cmp"
	"encoding/json"
	"strconv"
)

// defaultDraftTokens is the maximum number of draft tokens of a step, unless draftTokenCount sets
// another.
const defaultDraftTokens = 5

// draftsOfVLLM implements preset.drafts. vLLM drafts either with a second model or with n-grams.
func draftsOfVLLM(a arguments) []string {
	config := body{"num_speculative_tokens": cmp.Or(a.speculation.Tokens, defaultDraftTokens)}
	switch {
	case a.speculation.Disabled:
		return nil
	case a.draft != "":
		config["model"] = a.draft
	case a.speculation.NgramLength > 0:
		config["method"] = "ngram"
		config["prompt_lookup_min"], config["prompt_lookup_max"] = a.speculation.NgramLength, a.speculation.NgramLength
	default:
		return nil
	}
	text, err := json.Marshal(config)
	if err != nil {
		panic(err) // encoding texts and numbers never fails
	}
	return []string{"--speculative-config", string(text)}
}

// draftsOfLlama implements preset.drafts. Options for n-grams differ among versions of llama.cpp's
// server.
func draftsOfLlama(a arguments) []string {
	if a.draft == "" || a.speculation.Disabled {
		return nil
	}
	return []string{"--model-draft", a.draft, "--draft-max",
		strconv.Itoa(cmp.Or(a.speculation.Tokens, defaultDraftTokens))}
}
