package external

import (
	"cmp"
	"encoding/json"
	"strconv"
)

// defaultDraftTokens is the maximum number of draft tokens in a step, unless the deployment sets
// draftTokenCount.
const defaultDraftTokens = 5

// draftsOfVLLM implements preset.drafts. vLLM drafts with either a second model or n-grams.
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
		panic(err) // unreachable: texts and numbers can always be encoded
	}
	return []string{"--speculative-config", string(text)}
}

// draftsOfLlama implements preset.drafts. It sets no options for n-grams, because they differ among
// versions of llama.cpp's server.
func draftsOfLlama(a arguments) []string {
	if a.draft == "" || a.speculation.Disabled {
		return nil
	}
	return []string{"--model-draft", a.draft, "--draft-max",
		strconv.Itoa(cmp.Or(a.speculation.Tokens, defaultDraftTokens))}
}
