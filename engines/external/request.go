package external

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"anneal/domain"
	"anneal/engines"
)

// bodyOf returns the body of a request to the server. The error lists all fields that the server
// does not support.
func (p *preset) bodyOf(
	model string, contextLength int, req *engines.CompletionRequest,
) (path string, b body, err error) {
	var v domain.Violations
	v.Require(len(req.Stop) <= 4, "stop", "has %d sequences; at most 4 are allowed", len(req.Stop))
	v.Require(!req.RawOutput, "rawOutput", "is not supported by the node's engine: leave it out")
	v.Require(!req.Echo && req.EchoLast == 0 || req.Chat == nil, "echo",
		"is not supported by the node's engine for conversations: leave it out, or send a prompt")
	v.Require(!req.Echo && req.EchoLast == 0 || !req.Logprobs, "echo",
		"the node's engine returns no logprobs of the prompt: leave out either echo or logprobs")
	v.Require(req.Format == nil || knownFormat(req.Format.Type), "format",
		"the node's engine does not support the type %q: use another type, or omit the format", formatOf(req))
	b = standard(model, req)
	path = "/v1/completions"
	if req.Chat != nil {
		path = "/v1/chat/completions"
	} else if req.HasImages() {
		path = p.imagePrompt(b, req, &v)
	}
	why := p.whyNoReasoning(req)
	if why != "" {
		plain := *req
		if plain.Reasoning = nil; req.Chat != nil {
			plain.Reasoning = &engines.Reasoning{History: req.Reasoning.History}
		}
		req = &plain
	}
	if p.extend(b, contextLength, req, &v); why != "" {
		return path, b, engines.ReasoningError(v, why)
	}
	return path, b, v.Err()
}

// whyNoReasoning returns why the effort or the token budget of the reasoning has no effect; "" if
// the request sets neither, or if the server decides.
func (p *preset) whyNoReasoning(req *engines.CompletionRequest) string {
	switch {
	case !req.Reasoning.Acts():
		return ""
	case req.Chat == nil:
		return "has no effect on a prompt, which is completed without a chat template: leave it out, or send messages to " +
			"/inference/v1/chat/completions"
	case p.noReasoning:
		return "has no effect, because this model does not reason: leave it out"
	}
	return ""
}

// lacksReasoning reports whether the model in dir has a chat template that does not support
// reasoning.
func lacksReasoning(dir string) bool {
	if source, err := os.ReadFile(filepath.Join(dir, "chat_template.jinja")); err == nil {
		return !engines.TemplateReasons(string(source))
	}
	var config struct {
		Template any `json:"chat_template"` // a template, or a list of named templates
	}
	data, err := os.ReadFile(filepath.Join(dir, "tokenizer_config.json"))
	if err != nil || json.Unmarshal(data, &config) != nil || config.Template == nil {
		return false
	}
	return !engines.TemplateReasons(fmt.Sprint(config.Template))
}

// standard returns the fields of OpenAI's API. It always sets the sampling parameters, because the
// defaults of servers differ.
func standard(model string, req *engines.CompletionRequest) body {
	b := body{
		"model": model, "stream": true, "stream_options": body{"include_usage": true},
		"max_tokens":  max(1, req.MaxTokens), // servers reject 0, see model.Complete
		"temperature": req.Temperature, "top_p": cmp.Or(req.TopP, 1),
		"frequency_penalty": req.FrequencyPenalty, "presence_penalty": req.PresencePenalty,
	}
	switch {
	case req.Chat != nil:
		b["messages"] = messages(req)
		if len(req.Chat.Tools) > 0 {
			b["tools"], b["tool_choice"] = req.Chat.Tools, toolChoice(req.Chat.ToolChoice)
		}
		if calls := req.Chat.ToolChoice; calls != nil && calls.Single {
			b["parallel_tool_calls"] = false
		}
	case req.PromptTokens != nil:
		b["prompt"] = req.PromptTokens
	default:
		b["prompt"] = req.Prompt
	}
	if len(req.Stop) > 0 {
		b["stop"] = req.Stop
	}
	if len(req.LogitBias) > 0 {
		bias := map[string]float64{}
		for token, value := range req.LogitBias {
			bias[strconv.Itoa(token)] = value
		}
		b["logit_bias"] = bias
	}
	if req.Seed != nil {
		b["seed"] = *req.Seed & math.MaxInt64
	}
	if req.Logprobs {
		b.logprobs(req)
	}
	if req.Format != nil {
		b.format(req.Format)
	}
	return b
}

// logprobs adds the fields that request log-probabilities, those of chat completions or of
// completions.
func (b body) logprobs(req *engines.CompletionRequest) {
	if req.Chat != nil {
		b["logprobs"], b["top_logprobs"] = true, req.TopLogprobs
	} else {
		b["logprobs"] = req.TopLogprobs
	}
}

// toolChoice returns the value of the field tool_choice.
func toolChoice(calls *engines.ToolChoice) any {
	switch {
	case calls == nil:
		return "auto"
	case calls.Name == "":
		return "required"
	}
	return body{"type": "function", "function": body{"name": calls.Name}}
}

func (b body) format(f *engines.ResponseFormat) {
	switch f.Type {
	case engines.FormatJSON:
		b["response_format"] = body{"type": "json_object"}
	case engines.FormatSchema:
		schema := body{"name": "answer", "schema": f.Schema, "strict": true}
		b["response_format"] = body{"type": "json_schema", "json_schema": schema}
	}
}

// knownFormat reports whether format is a type of engines.ResponseFormat.
func knownFormat(format string) bool {
	return format == engines.FormatJSON || format == engines.FormatSchema || format == engines.FormatGrammar
}

func formatOf(req *engines.CompletionRequest) string {
	if req.Format == nil {
		return ""
	}
	return req.Format.Type
}

// messages returns the messages of a conversation for the server. They include earlier reasoning,
// unless the request disables it.
func messages(req *engines.CompletionRequest) []body {
	hide := req.Reasoning != nil && req.Reasoning.History == "disabled"
	all := make([]body, len(req.Chat.Messages))
	for i, m := range req.Chat.Messages {
		one := body{"role": m.Role, "content": contentOf(m)}
		if m.Name != "" {
			one["name"] = m.Name
		}
		if m.ToolCallID != "" {
			one["tool_call_id"] = m.ToolCallID
		}
		if m.Reasoning != "" && !hide {
			// servers read one of these two fields
			one["reasoning"], one["reasoning_content"] = m.Reasoning, m.Reasoning
		}
		var calls []body
		for _, call := range m.ToolCalls {
			function := body{"name": call.Name, "arguments": cmp.Or(call.Arguments, "{}")}
			calls = append(calls, body{"id": call.ID, "type": "function", "function": function})
		}
		if calls != nil {
			one["tool_calls"] = calls
		}
		all[i] = one
	}
	return all
}

// extendVLLM adds vLLM's own fields: see CompletionRequest and ChatCompletionRequest in vLLM's
// source code.
func extendVLLM(b body, _ int, req *engines.CompletionRequest, v *domain.Violations) {
	rejectTypical(req, v, "vLLM")
	v.Require(req.MirostatTarget == 0, "mirostatTarget", "is not supported by vLLM: leave it out")
	b["top_k"], b["min_p"] = req.TopK, req.MinP
	b["repetition_penalty"] = cmp.Or(req.RepetitionPenalty, 1)
	b["ignore_eos"], b["return_token_ids"] = req.IgnoreEOS, true
	b["stream_options"] = body{"include_usage": true, "continuous_usage_stats": true}
	if req.CacheScope != "" {
		b["cache_salt"] = req.CacheScope
	}
	if req.Format != nil && req.Format.Type == engines.FormatGrammar {
		b["structured_outputs"] = body{"grammar": req.Format.Grammar}
	}
	if r := req.Reasoning; r != nil {
		setEffort(b, r)
		if r.Budget > 0 {
			b["thinking_token_budget"] = r.Budget
		}
		rejectPreserved(r, v)
	}
}

// extendLlama adds the fields of llama.cpp's server, which its README describes. Unlike OpenAI's,
// its presence and frequency penalties also count the tokens of the prompt.
func extendLlama(b body, contextLength int, req *engines.CompletionRequest, v *domain.Violations) {
	b["top_k"], b["min_p"], b["typical_p"] = req.TopK, req.MinP, cmp.Or(req.TypicalP, 1)
	b["repeat_penalty"], b["repeat_last_n"] = cmp.Or(req.RepetitionPenalty, 1), contextLength
	b["samplers"] = []string{"penalties", "temperature", "top_k", "top_p", "min_p", "typ_p"}
	b["ignore_eos"] = req.IgnoreEOS
	if req.MirostatTarget > 0 {
		b["mirostat"], b["mirostat_tau"], b["mirostat_eta"] = 2, math.Log2(req.MirostatTarget), cmp.Or(req.MirostatRate, 0.1)
	}
	if req.Seed != nil {
		// seeds of the server have 32 bits; it replaces a seed with all bits set by a random one
		b["seed"] = (*req.Seed ^ *req.Seed>>32) & math.MaxInt32
	}
	if !req.Logprobs && req.ReturnTokenIDs {
		// the server returns token IDs only with log-probabilities
		b.logprobs(&engines.CompletionRequest{Chat: req.Chat, TopLogprobs: 1})
	}
	if req.Logprobs && req.TopLogprobs == 0 {
		// the server returns no log-probabilities for a TopLogprobs of 0
		b.logprobs(&engines.CompletionRequest{Chat: req.Chat, TopLogprobs: 1})
	}
	if req.Format != nil && req.Format.Type == engines.FormatGrammar {
		b["grammar"] = req.Format.Grammar
	}
	if r := req.Reasoning; r != nil {
		setEffort(b, r)
		v.Require(r.Budget == 0, "reasoning",
			"llama.cpp's server does not support a token budget for each request: leave the budget out")
		rejectPreserved(r, v)
	}
}

// extendOpenAI adds the reasoning effort. It reports the fields that OpenAI's API does not have as
// violations.
func extendOpenAI(b body, _ int, req *engines.CompletionRequest, v *domain.Violations) {
	const leave = "the node's engine supports only OpenAI's fields: leave this field out"
	rejectTypical(req, v, "the node's engine")
	v.Require(req.TopK == 0, "topK", leave)
	v.Require(req.MinP == 0, "minP", leave)
	v.Require(req.RepetitionPenalty == 0 || req.RepetitionPenalty == 1, "repetitionPenalty", leave)
	v.Require(!req.IgnoreEOS, "ignoreEos", leave)
	v.Require(req.MirostatTarget == 0, "mirostatTarget", leave)
	v.Require(!req.ReturnTokenIDs, "returnTokenIds", leave)
	v.Require(req.EchoLast == 0, "echoLast", leave)
	v.Require(formatOf(req) != engines.FormatGrammar, "format", leave)
	if r := req.Reasoning; r != nil {
		v.Require(r.Budget == 0 && r.History == "", "reasoning", leave)
		if r.Effort != "" {
			b["reasoning_effort"] = r.Effort
		}
	}
}

func rejectTypical(req *engines.CompletionRequest, v *domain.Violations, engine string) {
	v.Require(req.TypicalP == 0 || req.TypicalP == 1, "typicalP", "is not supported by %s: leave it out", engine)
}

func rejectPreserved(r *engines.Reasoning, v *domain.Violations) {
	v.Require(r.History != "preserved", "reasoning",
		"the node's engine cannot make the chat template render all earlier reasoning: use interleaved or disabled")
}

// setEffort sets the reasoning effort in the two ways that chat templates support.
func setEffort(b body, r *engines.Reasoning) {
	if r.Effort != "" {
		b["reasoning_effort"] = r.Effort
		b["chat_template_kwargs"] = body{"enable_thinking": r.Effort != "none"}
	}
}
