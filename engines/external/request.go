package external

import (
	"cmp"
	"math"
	"strconv"

	"anneal/domain"
	"anneal/engines"
)

// bodyOf is a request as the server wants it, or every field that it cannot
// honour.
func (p *preset) bodyOf(model string, window int, req *engines.CompletionRequest) (path string, b body, err error) {
	var v domain.Violations
	v.Require(len(req.Stop) <= 4, "stop", "has %d sequences; at most 4 are allowed", len(req.Stop))
	v.Require(!req.RawOutput, "rawOutput", "the node's engine does not tell what the model saw: leave it out")
	v.Require(!req.Echo && req.EchoLast == 0 || req.Chat == nil, "echo", "the node's engine cannot repeat a conversation: leave it out, or send a prompt")
	v.Require(!req.Echo && req.EchoLast == 0 || !req.Logprobs, "echo", "the node's engine tells no probabilities of the prompt: leave out either echo or logprobs")
	v.Require(req.Format == nil || known(req.Format.Type), "format", "the node's engine does not know %q", formatOf(req))
	b = standard(model, req)
	path = "/v1/completions"
	if req.Chat != nil {
		path = "/v1/chat/completions"
	} else {
		v.Require(req.Reasoning == nil, "reasoning", "belongs to a conversation: leave it out, or send messages")
	}
	p.extend(b, window, req, &v)
	return path, b, v.Err()
}

// standard are the fields of OpenAI's own interface. What decides how tokens
// are drawn is always sent, since servers have defaults of their own.
func standard(model string, req *engines.CompletionRequest) body {
	b := body{
		"model": model, "stream": true, "stream_options": body{"include_usage": true},
		"max_tokens":  max(1, req.MaxTokens), // see model.Complete
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

// logprobs asks for them, in the way of either operation.
func (b body) logprobs(req *engines.CompletionRequest) {
	if req.Chat != nil {
		b["logprobs"], b["top_logprobs"] = true, req.TopLogprobs
	} else {
		b["logprobs"] = req.TopLogprobs
	}
}

// toolChoice is the tool_choice that asks for calls.
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
		b["response_format"] = body{"type": "json_schema", "json_schema": body{"name": "answer", "schema": f.Schema, "strict": true}}
	}
}

func known(format string) bool {
	return format == engines.FormatJSON || format == engines.FormatSchema || format == engines.FormatGrammar
}

func formatOf(req *engines.CompletionRequest) string {
	if req.Format == nil {
		return ""
	}
	return req.Format.Type
}

// messages are a conversation's. Earlier reasoning goes with them unless the
// request wants none of it shown.
func messages(req *engines.CompletionRequest) []body {
	hide := req.Reasoning != nil && req.Reasoning.History == "disabled"
	all := make([]body, len(req.Chat.Messages))
	for i, m := range req.Chat.Messages {
		one := body{"role": m.Role, "content": m.Content}
		if m.Name != "" {
			one["name"] = m.Name
		}
		if m.ToolCallID != "" {
			one["tool_call_id"] = m.ToolCallID
		}
		if m.Reasoning != "" && !hide {
			one["reasoning"], one["reasoning_content"] = m.Reasoning, m.Reasoning // servers differ in the name
		}
		var calls []body
		for _, call := range m.ToolCalls {
			calls = append(calls, body{"id": call.ID, "type": "function", "function": body{"name": call.Name, "arguments": cmp.Or(call.Arguments, "{}")}})
		}
		if calls != nil {
			one["tool_calls"] = calls
		}
		all[i] = one
	}
	return all
}

// extendVLLM adds what vLLM has beyond OpenAI's fields: see the classes
// CompletionRequest and ChatCompletionRequest of its sources.
func extendVLLM(b body, _ int, req *engines.CompletionRequest, v *domain.Violations) {
	noTypical(req, v, "vLLM")
	v.Require(req.MirostatTarget == 0, "mirostatTarget", "vLLM has no mirostat: leave it out")
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
		effort(b, r)
		if r.Budget > 0 {
			b["thinking_token_budget"] = r.Budget
		}
		noPreserved(r, v)
	}
}

// extendLlama adds what llama.cpp's server has: see its README. Its penalties
// count the prompt's tokens, which those on presence and frequency should not.
func extendLlama(b body, window int, req *engines.CompletionRequest, v *domain.Violations) {
	b["top_k"], b["min_p"], b["typical_p"] = req.TopK, req.MinP, cmp.Or(req.TypicalP, 1)
	b["repeat_penalty"], b["repeat_last_n"] = cmp.Or(req.RepetitionPenalty, 1), window
	b["samplers"] = []string{"penalties", "temperature", "top_k", "top_p", "min_p", "typ_p"}
	b["ignore_eos"] = req.IgnoreEOS
	if req.MirostatTarget > 0 {
		b["mirostat"], b["mirostat_tau"], b["mirostat_eta"] = 2, math.Log2(req.MirostatTarget), cmp.Or(req.MirostatRate, 0.1)
	}
	if req.Seed != nil {
		b["seed"] = (*req.Seed ^ *req.Seed>>32) & math.MaxInt32 // it has 32 bits, and all of them set mean none
	}
	if !req.Logprobs && req.ReturnTokenIDs {
		// It names tokens beside their probabilities only.
		b.logprobs(&engines.CompletionRequest{Chat: req.Chat, TopLogprobs: 1})
	}
	if req.Logprobs && req.TopLogprobs == 0 {
		b.logprobs(&engines.CompletionRequest{Chat: req.Chat, TopLogprobs: 1}) // 0 is none at all to it
	}
	if req.Format != nil && req.Format.Type == engines.FormatGrammar {
		b["grammar"] = req.Format.Grammar
	}
	if r := req.Reasoning; r != nil {
		effort(b, r)
		v.Require(r.Budget == 0, "reasoning", "llama.cpp's server cannot cap the tokens of one request's reasoning: leave the number out")
		noPreserved(r, v)
	}
}

// extendOpenAI refuses what a server with OpenAI's fields alone cannot do.
func extendOpenAI(b body, _ int, req *engines.CompletionRequest, v *domain.Violations) {
	const leave = "the node's engine has OpenAI's fields only: leave it out"
	noTypical(req, v, "the node's engine")
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

func noTypical(req *engines.CompletionRequest, v *domain.Violations, who string) {
	v.Require(req.TypicalP == 0 || req.TypicalP == 1, "typicalP", "%s has no such filter: leave it out", who)
}

func noPreserved(r *engines.Reasoning, v *domain.Violations) {
	v.Require(r.History != "preserved", "reasoning", "the node's engine cannot make the model's template show all earlier reasoning: use interleaved or disabled")
}

// effort asks for it in both ways that templates know.
func effort(b body, r *engines.Reasoning) {
	if r.Effort != "" {
		b["reasoning_effort"] = r.Effort
		b["chat_template_kwargs"] = body{"enable_thinking": r.Effort != "none"}
	}
}
