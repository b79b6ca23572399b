package api

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/inference"
	"anneal/domain"
	"anneal/engines"
	"anneal/internal/testutil"
)

// respond makes every replica respond with the chunks and the usage.
func (s *harness) respond(usage engines.Usage, chunks ...engines.Chunk) {
	s.replicas.respond = func(_ context.Context, _ domain.Replica, _ engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		for _, c := range chunks {
			if err := emit(c); err != nil {
				return usage, err
			}
		}
		return usage, nil
	}
}

func (s *harness) chat(fields string) response {
	s.Helper()
	return s.call("POST", "/inference/v1/chat/completions", "inference",
		`{`+toD1+`, "messages": [{"role": "user", "content": "hi"}], `+fields+`}`)
}

// sameJSON requires that got encodes to the same JSON as want.
func sameJSON(t *testing.T, want string, got any) {
	t.Helper()
	data := testutil.Marshal(t, got)
	require.JSONEq(t, want, string(data))
}

func (s *harness) lastRequest() engines.CompletionRequest {
	s.replicas.mu.Lock()
	defer s.replicas.mu.Unlock()
	return s.replicas.reqs[len(s.replicas.reqs)-1]
}

var calling = []engines.Chunk{{Reasoning: "Hm."}, {Text: "Let me see."},
	{ToolCalls: []engines.ToolCall{{Name: "weather", Arguments: `{"city":`}}},
	{ToolCalls: []engines.ToolCall{{Arguments: `"Paris"}`}, {Index: 1, ID: "own", Name: "time", Arguments: "{}"}}},
	{Finish: engines.FinishToolCalls}}

const twoTools = `"tools": [{"type": "function", "function": {"name": "weather", "parameters": {"z": 1, "a": 2}}}, ` +
	`{"type": "function", "function": {"name": "time"}}]`

func TestToolCalls(t *testing.T) {
	s := servingHarness(t, 1)
	s.respond(engines.Usage{PromptTokens: 5, CompletionTokens: 9, ReasoningTokens: 2}, calling...)
	a := s.chat(twoTools)
	require.Equal(t, 200, a.status, "%s", a.body)
	choice := a.json(t)["choices"].([]any)[0].(map[string]any)
	require.Equal(t, "tool_calls", choice["finish_reason"])
	message := choice["message"].(map[string]any)
	calls := message["tool_calls"].([]any)
	id := calls[0].(map[string]any)["id"].(string)
	require.Regexp(t, "^call_[0-9a-f]{16}_0_0$", id)
	sameJSON(t, `{"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "refusal": null, `+
		`"tool_calls": [
		{"id": "`+id+`", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Paris\"}"}},
		{"id": "own", "type": "function", "function": {"name": "time", "arguments": "{}"}}]}`, message)
	sameJSON(t, `{"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14, "prompt_tokens_details": `+
		`{"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 2}}`, a.json(t)["usage"])
	require.JSONEq(t, `{"name": "weather", "parameters": {"z": 1, "a": 2}}`, toolOf(t, s.lastRequest().Chat.Tools[0]))
	require.Less(t, strings.Index(string(s.lastRequest().Chat.Tools[0]), `"z"`),
		strings.Index(string(s.lastRequest().Chat.Tools[0]), `"a"`), "keys keep their order")

	// With parallel_tool_calls false, the message contains only the first tool call.
	s.respond(engines.Usage{}, calling[2:]...)
	message = s.chat(twoTools + `, "parallel_tool_calls": ` +
		`false`).json(t)["choices"].([]any)[0].(map[string]any)["message"].(map[string]any)
	require.Nil(t, message["content"])
	require.Len(t, message["tool_calls"], 1)

	// With the tool_choice none the model gets no tools.
	s.chat(twoTools + `, "tool_choice": "none"`)
	require.Empty(t, s.lastRequest().Chat.Tools)
}

func TestToolChoice(t *testing.T) {
	s := servingHarness(t, 1)
	s.respond(engines.Usage{}, calling...)
	for choice, want := range map[string]*engines.ToolChoice{
		`"auto"`:     nil,
		`"required"`: {},
		`"required", "parallel_tool_calls": false`:              {Single: true},
		`{"type": "function", "function": {"name": "weather"}}`: {Name: "weather", Single: true},
	} {
		a := s.chat(twoTools + `, "tool_choice": ` + choice)
		require.Equal(t, 200, a.status, "%s", a.body)
		require.Equal(t, want, s.lastRequest().Chat.ToolChoice, choice)
		require.Len(t, s.lastRequest().Chat.Tools, 2)
	}
	for fields, want := range map[string]string{
		twoTools + `, "tool_choice": "always"`: "tool_choice: must be auto",
		twoTools + `, "tool_choice": 5`:        "tool_choice: must be auto",
		twoTools + `, "tool_choice": {"type": "custom", "function": {"name": ` +
			`"time"}}`: "tool_choice.type: must be function",
		twoTools + `, "tool_choice": {"type": "function"}`: "tool_choice.function.name: " +
			"is required",
		twoTools + `, "tool_choice": {"type": "function", "function": {"name": ` +
			`"clock"}}`: "tool_choice.function.name: is not in tools",
		twoTools + `, "tool_choice": "required", "response_format": {"type": ` +
			`"json_object"}`: "response_format: cannot be combined with",
		`"tool_choice": "required"`: "tool_choice: requires tools",
	} {
		a := s.chat(fields)
		require.Equal(t, 400, a.status, fields)
		require.Contains(t, string(a.body), want)
	}
}

// TestSchemaKeepsOrder checks that the engine gets the properties of a schema in the order of the
// request.
func TestSchemaKeepsOrder(t *testing.T) {
	const schema = `{"type":"object","properties":{"z":{"type":"null"},"a":{"type":"null"}}}`
	s := servingHarness(t, 1)
	for _, fields := range []string{
		`"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": ` + schema + `}}`,
		`"response_format": {"type": "json_schema", "jsonSchema": {"schema": ` + schema + `}}`,
		`"responseFormat": {"type": "json_schema", "schema": ` + schema + `}`,
		`"response_format": {"type": "json_schema", "schema": ` + strconv.Quote(schema) + `}`,
		`"response_format": {"type": "json_object", "schema": ` + schema + `}`,
		`"response_format": {"type": "json_schema", ` +
			`"json_schema": ` + strconv.Quote(`{"name": "n", "schema": `+schema+`}`) + `}`,
	} {
		a := s.chat(fields)
		require.Equal(t, 200, a.status, "%s", a.body)
		require.Equal(t, schema, string(s.lastRequest().Format.Schema), fields)
		require.Equal(t, engines.FormatSchema, s.lastRequest().Format.Type, fields)
	}
}

func toolOf(t *testing.T, raw json.RawMessage) string {
	var tool struct{ Function json.RawMessage }
	require.NoError(t, json.Unmarshal(raw, &tool))
	return string(tool.Function)
}

func TestStreamedChat(t *testing.T) {
	s := servingHarness(t, 1)
	s.respond(engines.Usage{PromptTokens: 5, CompletionTokens: 9}, calling...)
	usage := `{"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14, "prompt_tokens_details": ` +
		`{"cached_tokens": 0}}`
	for _, closing := range []bool{false, true} {
		fields := twoTools + `, "stream": true, "perf_metrics_in_response": true`
		if closing {
			fields += `, "stream_options": {"include_usage": true}`
		}
		a := s.chat(fields)
		require.Equal(t, "text/event-stream", a.header.Get("Content-Type"))
		all := chunks(t, string(a.body))
		var deltas []any
		for i, piece := range all {
			require.Equal(t, "chat.completion.chunk", piece["object"])
			if len(piece["choices"].([]any)) == 0 {
				require.True(t, closing && i == len(all)-1)
				sameJSON(t, usage, piece["usage"])
				continue
			}
			choice := piece["choices"].([]any)[0].(map[string]any)
			deltas = append(deltas, choice["delta"])
			finished := choice["finish_reason"] != nil
			require.Equal(t, finished, piece["perf_metrics"] != nil)
			require.Equal(t, finished && !closing, piece["usage"] != nil, "reported once, so that a client can sum the usage")
			if finished {
				require.Equal(t, "tool_calls", choice["finish_reason"])
			}
		}
		id := deltas[2].(map[string]any)["tool_calls"].([]any)[0].(map[string]any)["id"].(string)
		sameJSON(t, `[{"role": "assistant", "content": "", "reasoning_content": "Hm."}, {"content": "Let me see."},
			{"tool_calls": [{"index": 0, "id": "`+id+`", "type": "function", "function": {"name": "weather", "arguments": `+
			`"{\"city\":"}}]},
			{"tool_calls": [{"index": 0, "function": {"arguments": "\"Paris\"}"}}, {"index": 1, "id": "own", "type": `+
			`"function", "function": {"name": "time", "arguments": "{}"}}]},
			{}]`, deltas)
	}
	// A response without content still has the role.
	s.respond(engines.Usage{}, engines.Chunk{Finish: engines.FinishStop})
	all := chunks(t, string(s.chat(`"stream": true`).body))
	require.Len(t, all, 1)
	sameJSON(t, `[{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": `+
		`"stop"}]`, all[0]["choices"])
}

// fullOutput is a response with every optional part: the echo of "é", whose two bytes are a token
// each, and the completion "b".
var fullOutput = []engines.Chunk{
	{Prompt: &engines.RenderedPrompt{Text: "<s>é", Tokens: []int{1, 195}}},
	{Prompt: &engines.RenderedPrompt{Tokens: []int{169}}},
	{Text: "é", Echoed: true, Tokens: []int{195, 169}, Logprobs: []engines.Logprob{
		{Token: 195, Text: "\uFFFD", Bytes: []byte{0xc3}, Unknown: true},
		{Token: 169, Text: "\uFFFD", Bytes: []byte{0xa9}, Logprob: -1, Sampling: -1}}},
	{Text: "b", Tokens: []int{98}, Raw: "b",
		Logprobs: []engines.Logprob{{Token: 98, Text: "b", Bytes: []byte("b"), Offset: 1, Logprob: -0.5, Sampling: -0.25,
			Top: []engines.Logprob{{Token: 99, Text: "c", Bytes: []byte("c"), Logprob: -0.25}}}}},
	{Tokens: []int{2}, Raw: "</s>",
		Logprobs: []engines.Logprob{{Token: 2, Text: "</s>", Bytes: []byte("</s>"), Offset: 2, Logprob: -2, Sampling: 0}},
		Finish:   engines.FinishStop},
}

const contentOfFullOutput = `{"content": [
	{"token": "b", "logprob": -0.5, "sampling_logprob": -0.25, "bytes": [98], "token_id": 98, "text_offset": 1, ` +
	`"top_logprobs": [{"token": "c", "logprob": -0.25, "token_id": 99, "bytes": [99]}]},
	{"token": "</s>", "logprob": -2, "sampling_logprob": 0, "bytes": [60, 47, 115, 62], "token_id": 2, "text_offset": ` +
	`2, "top_logprobs": []}]}`

const rawOfFullOutput = `{"prompt_fragments": ["<s>é"], "prompt_token_ids": [1, 195, 169], "completion": "b</s>", ` +
	`"completion_token_ids": [98, 2], "images": [], "grammar": null,
	"completion_logprobs": ` + contentOfFullOutput + `}`

func TestCompletionWithAllOutputs(t *testing.T) {
	s := servingHarness(t, 1)
	s.respond(engines.Usage{PromptTokens: 3, CompletionTokens: 2}, fullOutput...)
	fields := `"prompt": "é", "echo": true, "raw_output": true, "return_token_ids": true, "logprobs": `
	lists := `{"tokens": ["bytes:\\xc3", "bytes:\\xa9", "b", "</s>"], "token_logprobs": [null, -1, -0.5, -2], ` +
		`"text_offset": [0, 0, 1, 2], "token_ids": [195, 169, 98, 2], "top_logprobs": `
	for setting, top := range map[string]string{
		`true, "top_logprobs": 1`: `[null, {}, {"c": -0.25}, {}]`,
		`1`:                       `[null, {"bytes:\\xa9": -1}, {"c": -0.25, "b": -0.5}, {"</s>": -2}]`,
	} {
		a := s.complete(fields + setting)
		require.Equal(t, 200, a.status, "%s", a.body)
		sameJSON(t, `[{"index": 0, "text": "éb", "finish_reason": "stop", "prompt_token_ids": [1, 195, 169], "token_ids": `+
			`[98, 2], "logprobs": `+lists+top+`}, "raw_output": `+rawOfFullOutput+`}]`, a.json(t)["choices"])
		req := s.lastRequest()
		require.Equal(t, []any{true, 1, true, true, true},
			[]any{req.Logprobs, req.TopLogprobs, req.Echo, req.RawOutput, req.ReturnTokenIDs})
	}
	// A stream has the same content in chunks. The last chunk has the raw output.
	text, tokens, prompt, logprobs := "", []any{}, []any{}, 0
	all := chunks(t, string(s.complete(fields+`1, "stream": true`).body))
	for i, piece := range all {
		choice := piece["choices"].([]any)[0].(map[string]any)
		text += choice["text"].(string)
		if more, ok := choice["token_ids"].([]any); ok {
			tokens = append(tokens, more...)
		}
		if more, ok := choice["prompt_token_ids"].([]any); ok {
			prompt = append(prompt, more...)
		}
		if l, ok := choice["logprobs"].(map[string]any); ok {
			logprobs += len(l["tokens"].([]any))
		}
		require.Equal(t, i == len(all)-1, choice["raw_output"] != nil)
		if i == len(all)-1 {
			sameJSON(t, rawOfFullOutput, choice["raw_output"])
		}
	}
	require.Equal(t, []any{"éb", []any{98.0, 2.0}, []any{1.0, 195.0, 169.0}, 4}, []any{text, tokens, prompt, logprobs})
}

func TestChatWithAllOutputs(t *testing.T) {
	s := servingHarness(t, 1)
	s.respond(engines.Usage{PromptTokens: 3, CompletionTokens: 2}, append(fullOutput[:2:2], fullOutput[3:]...)...)
	a := s.chat(`"raw_output": true, "return_token_ids": true, "logprobs": true, "top_logprobs": 1`)
	require.Equal(t, 200, a.status, "%s", a.body)
	sameJSON(t, `[{"index": 0, "message": {"role": "assistant", "content": "b", "refusal": null}, "finish_reason": `+
		`"stop", "prompt_token_ids": [1, 195, 169], "token_ids": [98, 2],
		"logprobs": `+contentOfFullOutput+`, "raw_output": `+rawOfFullOutput+`}]`, a.json(t)["choices"])
}

// TestSettingsReachTheEngine checks that the settings of a request reach the engine, and that the
// engine gets no other settings.
func TestSettingsReachTheEngine(t *testing.T) {
	s := servingHarness(t, 1)
	s.complete(`"prompt": "a"`)
	req := s.lastRequest()
	require.Equal(t, engines.CompletionRequest{Prompt: "a", MaxTokens: inference.DefaultMaxTokens, Temperature: 1, TopP: 1,
		TypicalP: 1, RepetitionPenalty: 1, CacheScope: "acme"}, req)
	a := s.complete(`"prompt": "a", "min_p": 0.1, "typical_p": 0, "frequency_penalty": -1, "presence_penalty": 1, ` +
		`"repetition_penalty": 0, "mirostat_target": 4, "mirostat_lr": 0.2,
		"logit_bias": {"7": -100}, "logprobs": 2, "top_logprobs": 3, "echo_last": 4, "ignore_eos": true, ` +
		`"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
		"speculation": "s", "prediction": {"type": "content", "content": [{"type": "text", "text": "p"}]}, ` +
		`"reasoning_effort": 2000, "reasoning_history": "preserved", "prompt_cache_isolation_key": "k"`)
	require.Equal(t, 200, a.status, "%s", a.body)
	req = s.lastRequest()
	require.Positive(t, req.TypicalP)
	require.Less(t, req.TypicalP, 1e-6)
	req.TypicalP = 0
	require.Equal(t, engines.CompletionRequest{Prompt: "a", MaxTokens: inference.DefaultMaxTokens, Temperature: 1, TopP: 1,
		MinP: 0.1, FrequencyPenalty: -1, PresencePenalty: 1, RepetitionPenalty: 0.001,
		MirostatTarget: 4, MirostatRate: 0.2, LogitBias: map[int]float64{7: -100}, Logprobs: true, TopLogprobs: 3,
		EchoLast: 4, IgnoreEOS: true, Speculation: "s", Prediction: "p",
		Format:    &engines.ResponseFormat{Type: engines.FormatSchema, Schema: json.RawMessage(`{"type":"object"}`)},
		Reasoning: &engines.Reasoning{Effort: "medium", Budget: 2000}, CacheScope: "acme/k"}, req,
		"a prompt has no earlier messages")

	a = s.call("POST", "/v1/chat/completions", "user", `{"model": "accounts/acme/deployments/d1", "reasoning_history": `+
		`"interleaved", "messages": [{"role": "user", "content": "a"}]}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, &engines.Reasoning{History: "interleaved"}, s.lastRequest().Reasoning)
	s.complete(`"prompt": "a", "reasoning_history": "preserved"`)
	require.Nil(t, s.lastRequest().Reasoning)
}

// TestEngineErrorsNameRequestFields checks that the error of an engine refers to fields by their
// names in the request.
func TestEngineErrorsNameRequestFields(t *testing.T) {
	s := servingHarness(t, 1)
	var v domain.Violations
	for _, field := range []string{"format", "mirostatRate", "logitBias", "promptTokens[3]", "reasoning", "topLogprobs"} {
		v.Add(field, "is wrong")
	}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"all of them": {v.Err(), "response_format: is wrong; mirostat_lr: is wrong; logit_bias: is wrong; prompt[1][3]: " +
			"is wrong; reasoning_effort: is wrong; top_logprobs: is wrong"},
		"one": {domain.Errorf(domain.InvalidArgument, "prompt: has 5 tokens: too "+
			"many"), "prompt[1]: has 5 tokens: too many"},
		"none": {domain.Errorf(domain.InvalidArgument, "it is wrong: mend it"), "it is wrong: mend it"},
	} {
		s.replicas.respond = func(_ context.Context, _ domain.Replica, req engines.CompletionRequest,
			emit func(engines.Chunk) error) (engines.Usage, error) {
			if req.Prompt == "a" {
				return engines.Usage{}, emit(engines.Chunk{Finish: engines.FinishStop})
			}
			return engines.Usage{}, c.err
		}
		a := s.complete(`"prompt": ["a", "b"]`)
		require.Equal(t, 400, a.status, name)
		require.Equal(t, c.want, a.json(t)["error"].(map[string]any)["message"], name)
	}
}

// TestAffinity checks that requests with the same isolation key are routed to one replica, and that
// requests with the same user are not when the deployment does not enable session affinity.
func TestAffinity(t *testing.T) {
	s := servingHarness(t, 4)
	places := func(fields string) map[string]bool {
		found := map[string]bool{}
		block, held := make(chan struct{}), make(chan struct{}, 4)
		s.replicas.respond = func(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
			emit func(engines.Chunk) error) (engines.Usage, error) {
			held <- struct{}{}
			<-block
			return echo(ctx, r, req, emit)
		}
		before := len(s.replicas.requestIDs())
		done := make(chan response, 4)
		for range 4 {
			go func() { done <- s.chat(fields) }()
			<-held // this request is in progress when the next one is routed
		}
		close(block)
		for range 4 {
			require.Equal(t, 200, (<-done).status)
		}
		for _, id := range s.replicas.requestIDs()[before:] {
			found[id] = true
		}
		return found
	}
	require.Len(t, places(`"user": "u"`), 4, "the least loaded replica is chosen")
	require.Len(t, places(`"prompt_cache_isolation_key": "k"`), 1)
}

func TestPerformanceMetrics(t *testing.T) {
	s := servingHarness(t, 1)
	s.respond(engines.Usage{PromptTokens: 3, CachedTokens: 2,
		Timings: engines.Timings{Tokenize: 1e6, Prefill: 2e9, Direct: true}}, engines.Chunk{Text: "x"},
		engines.Chunk{Finish: engines.FinishStop})
	a := s.chat(`"perf_metrics_in_response": true`)
	want := map[string]string{"prompt-tokens": "3", "cached-prompt-tokens": "2",
		"deployment": "accounts/acme/deployments/d1", "backend-host": domain.NodeMask{Key: pepper}.Label("n1"),
		"num-concurrent-requests": "1",
		"tokenizer-duration":      "0.001000", "prefill-duration": "2.000000", "tokenizer-queue-duration": "0.000000",
		"generation-queue-duration": "0.000000"}
	for name, value := range want {
		require.Equal(t, value, a.header.Get("anneal-"+name), name)
	}
	require.Regexp(t, `^replica=r1; reason=tokens; candidates=1; requests=0; pending-tokens=0; cached-tokens=0; `+
		`uncached-tokens=\d+$`, a.header.Get("anneal-route"))
	body := a.json(t)["perf_metrics"].(map[string]any)
	require.Len(t, body, len(want)+2, "absent when it was not measured: %v", body)
	for _, name := range []string{"server-time-to-first-token", "server-processing-time"} {
		require.NotEmpty(t, a.header.Get("anneal-"+name))
		require.Contains(t, body, name)
	}
	require.InDelta(t, 2.0, body["prefill-duration"], 0)
}

func TestSpeculationMetrics(t *testing.T) {
	s := servingHarness(t, 1)
	done := engines.Chunk{Text: "x", Finish: engines.FinishStop}
	s.respond(engines.Usage{Speculation: &engines.Speculation{PredictedTokens: 9, MatchedTokens: 4,
		Drafted: []int{4, 3, 1}, Accepted: []int{3, 1, 0}}}, done)
	a := s.chat(`"prediction": {"type": "content", "content": "p"}, "perf_metrics_in_response": true, "n": 2`)
	for name, value := range map[string]string{"speculation-prompt-tokens": "18", "speculation-prompt-matched-tokens": "8",
		"speculation-generated-tokens": "16", "speculation-acceptance": "0.750,0.333,0.000"} {
		require.Equal(t, value, a.header.Get("anneal-"+name), name)
		require.Equal(t, value, fmt.Sprint(a.json(t)["perf_metrics"].(map[string]any)[name]), name)
	}
	s.respond(engines.Usage{Speculation: &engines.Speculation{}}, done)
	a = s.chat(`"n": 1`)
	require.Equal(t, "0", a.header.Get("anneal-speculation-generated-tokens"), "no draft was accepted")
	require.Empty(t, a.header.Get("anneal-speculation-acceptance"))
	require.Empty(t, a.header.Get("anneal-speculation-prompt-tokens"))
}
