package api

import "encoding/json"

// refuseUnsupported checks the fields that no engine here honours yet. One
// that asks for nothing special is accepted; one that would change the answer
// is refused, since an answer without it would be another one than was asked
// for. Hints that only make an answer faster are accepted.
func (f *inferenceFields) refuseUnsupported(q *completionRequest) {
	refuse := func(name string, asks bool) {
		f.violations.Require(!asks, name, "is not offered yet: leave it out")
	}
	refuse("raw_output", f.flag("raw_output"))
	refuse("return_token_ids", f.flag("return_token_ids"))
	refuse("min_p", f.number("min_p", 0, 1, 0) != 0)
	refuse("typical_p", f.number("typical_p", 0, 1, 1) != 1)
	refuse("frequency_penalty", f.number("frequency_penalty", -2, 2, 0) != 0)
	refuse("presence_penalty", f.number("presence_penalty", -2, 2, 0) != 0)
	refuse("repetition_penalty", f.number("repetition_penalty", 0, 2, 1) != 1)
	refuse("mirostat_target", f.values["mirostat_target"] != nil)
	refuse("logprobs", f.asksLogprobs())
	refuse("top_logprobs", f.whole("top_logprobs", 0, 5, -1) >= 0)
	refuse("echo_last", f.whole("echo_last", 0, maxOutputTokens, 0) > 0)
	refuse("logit_bias", f.asksBias())
	refuse("response_format", f.asksFormat())
	refuse("reasoning_effort", f.asksReasoning())
	refuse("reasoning_history", f.choice("reasoning_history", "disabled", "interleaved", "preserved") > "disabled")
	refuse("thinking", f.asksThinking())
	images, isList := f.values["images"].([]any)
	f.violations.Require(f.values["images"] == nil || isList, "images", "must be a list")
	refuse("images", len(images) > 0)
	for _, p := range q.prompts {
		if q.echo && p.tokens != nil {
			f.violations.Add("echo", "is offered for prompts of text only: send the prompt as text")
			break
		}
	}
}

func (f *inferenceFields) asksLogprobs() bool {
	switch v := f.values["logprobs"].(type) {
	case nil:
		return false
	case bool:
		return v
	case json.Number:
		f.whole("logprobs", 0, 5, 0)
		return true
	}
	f.violations.Add("logprobs", "must be true, false, or a whole number from 0 to 5")
	return false
}

func (f *inferenceFields) asksBias() bool {
	biases := f.object("logit_bias")
	for _, bias := range biases {
		number, ok := bias.(json.Number)
		if n, err := number.Float64(); !ok || err != nil || n < -100 || n > 100 {
			f.violations.Add("logit_bias", "must map token IDs to numbers from -100 to 100")
			break
		}
	}
	return len(biases) > 0
}

func (f *inferenceFields) asksFormat() bool {
	format := f.object("response_format")
	if format == nil {
		return false
	}
	switch format["type"] {
	case "text":
		return false
	case "json_object", "json_schema", "grammar":
		return true
	}
	f.violations.Add("response_format", "its type must be text, json_object, json_schema or grammar")
	return false
}

func (f *inferenceFields) asksReasoning() bool {
	switch v := f.values["reasoning_effort"].(type) {
	case nil:
		return false
	case bool:
		return v
	case json.Number:
		n, ok := whole(v)
		f.violations.Require(ok && n > 0, "reasoning_effort", "must be a positive whole number, true, false, or one of low, medium, high, none")
		return true
	}
	effort := f.choice("reasoning_effort", "none", "low", "medium", "high")
	return effort != "" && effort != "none"
}

func (f *inferenceFields) asksThinking() bool {
	thinking := f.object("thinking")
	if thinking == nil {
		return false
	}
	kind, _ := thinking["type"].(string)
	f.violations.Require(kind == "enabled" || kind == "disabled", "thinking", "its type must be enabled or disabled")
	return kind == "enabled"
}
