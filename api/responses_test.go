package api

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/internal/testutil"
)

func (s *harness) createResponse(body string) response {
	s.Helper()
	return s.call("POST", "/v1/responses", "inference", `{"model": "accounts/acme/deployments/d1", `+body+`}`)
}

// generating makes replicas emit the chunks, and returns a pointer to the last request that a
// replica received.
func (s *harness) generating(usage engines.Usage, chunks ...engines.Chunk) *engines.CompletionRequest {
	got := &engines.CompletionRequest{}
	s.replicas.responding(func(_ context.Context, _ domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		*got = req
		for _, chunk := range chunks {
			if err := emit(chunk); err != nil {
				return usage, err
			}
		}
		return usage, nil
	})
	return got
}

var thoughtful = []engines.Chunk{{Reasoning: "Hm"}, {Reasoning: "."}, {Text: "Let "}, {Text: "me see."},
	{ToolCalls: []engines.ToolCall{{Index: 0, Name: "look", Arguments: `{"at":`}}},
	{ToolCalls: []engines.ToolCall{{Index: 0, Arguments: `"x"}`}, {Index: 1, Name: "stop", Arguments: "{}"}}},
	{Finish: engines.FinishToolCalls}}

const lookTool = `{"type": "function", "name": "look", "parameters": {"type": "object", "properties": ` +
	`{"z": {"type": "string"}, "a": {"type": "string"}}}}`

// TestResponse checks the items, the usage and the repeated settings of a response.
func TestResponse(t *testing.T) {
	s := servingHarness(t, 1)
	got := s.generating(engines.Usage{PromptTokens: 7, CachedTokens: 2, CompletionTokens: 9, ReasoningTokens: 3},
		thoughtful...)
	a := s.createResponse(`"instructions": "Be brief.", "input": "Look.", "tools": [` + lookTool +
		`], "metadata": {"k": "v"}, ` +
		`"temperature": 0, "max_output_tokens": 50, "reasoning": {"effort": "low"}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Empty(t, a.header.Values("anneal-warning"))
	r := a.json(t)
	require.Regexp(t, `^resp_`, r["id"])
	require.Equal(t, "completed", r["status"])
	require.Equal(t, false, r["store"])
	require.Nil(t, r["error"])
	require.Equal(t, "Be brief.", r["instructions"])
	require.EqualValues(t, 50, r["max_output_tokens"])
	sameJSON(t, `{"k": "v"}`, r["metadata"])
	sameJSON(t, `{"effort": "low", "summary": null}`, r["reasoning"])
	sameJSON(t, `[`+lookTool+`]`, r["tools"])
	sameJSON(t, `{"input_tokens": 7, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 9, `+
		`"output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 16}`, r["usage"])
	ids := map[any]bool{}
	for _, one := range r["output"].([]any) {
		item := one.(map[string]any)
		require.False(t, ids[item["id"]], "IDs are unique")
		ids[item["id"]] = true
		delete(item, "id")
		if item["call_id"] != nil {
			require.Regexp(t, `^call_`, item["call_id"])
			item["call_id"] = "call"
		}
	}
	sameJSON(t, `[{"type": "reasoning", "status": "completed", "summary": [], "content": [{"type": "reasoning_text", `+
		`"text": "Hm."}]}, {"type": "message", "status": "completed", "role": "assistant", "content": [{"type": `+
		`"output_text", "text": "Let me see.", "annotations": [], "logprobs": []}]}, {"type": "function_call", "status": `+
		`"completed", "call_id": "call", "name": "look", "arguments": "{\"at\":\"x\"}"}, {"type": "function_call", `+
		`"status": "completed", "call_id": "call", "name": "stop", "arguments": "{}"}]`, r["output"])

	require.Equal(t, []engines.Message{{Role: "system", Content: "Be brief."}, {Role: "user", Content: "Look."}},
		got.Chat.Messages)
	require.Equal(t, 50, got.MaxTokens)
	require.Equal(t, "low", got.Reasoning.Effort)
	require.Len(t, got.Chat.Tools, 1)
	require.Equal(t, `{"type":"function","function":{"name":"look","parameters":{"type": "object", "properties": `+
		`{"z": {"type": "string"}, "a": {"type": "string"}}}}}`, string(got.Chat.Tools[0]), "in the order of the request")

	s.generating(engines.Usage{}, engines.Chunk{Text: "cut"}, engines.Chunk{Finish: engines.FinishLength})
	cut := s.createResponse(`"input": "a"`).json(t)
	require.Equal(t, "incomplete", cut["status"])
	sameJSON(t, `{"reason": "max_output_tokens"}`, cut["incomplete_details"])
}

// TestResponseInput checks how items become messages.
func TestResponseInput(t *testing.T) {
	s := servingHarness(t, 1)
	got := s.generating(engines.Usage{}, engines.Chunk{Text: "ok", Finish: engines.FinishStop})
	a := s.createResponse(`"input": [{"role": "developer", "content": "D"}, {"type": "message", "role": "user", ` +
		`"content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}, ` +
		`{"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}, ` +
		`{"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", ` +
		`"content": [{"type": "output_text", "text": "See:", "annotations": []}]}, ` +
		`{"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{}"}, {"type": ` +
		`"function_call", "call_id": "c2", "name": "look", "arguments": "{}"}, {"type": "function_call_output", "call_id": ` +
		`"c1", "output": "one"}, {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", ` +
		`"text": "two"}]}],` +
		`"text": {"format": {"type": "json_schema", "name": "n", "strict": true, "schema": {"type": "object", ` +
		`"properties": {"z": {"type": "integer"}, "a": {"type": "integer"}}}}}, "prompt_cache_key": "k", ` +
		`"safety_identifier": "u"`)
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, []engines.Message{
		{Role: "developer", Content: "D"}, {Role: "user", Content: "ab"},
		{Role: "assistant", Content: "See:", Reasoning: "Hm.", ToolCalls: []engines.ToolCall{
			{Index: 0, ID: "c1", Name: "look", Arguments: "{}"}, {Index: 1, ID: "c2", Name: "look", Arguments: "{}"}}},
		{Role: "tool", Content: "one", ToolCallID: "c1"}, {Role: "tool", Content: "two", ToolCallID: "c2"},
	}, got.Chat.Messages)
	require.Equal(t, engines.FormatSchema, got.Format.Type)
	require.Equal(t, `{"type":"object","properties":{"z":{"type":"integer"},"a":{"type":"integer"}}}`,
		string(got.Format.Schema), "in the order of the request")
	require.Equal(t, "acme/k", got.CacheScope)
	require.Equal(t, "u", a.json(t)["safety_identifier"])
	// the output of a response is valid as input
	output := testutil.Marshal(t, a.json(t)["output"])
	again := s.createResponse(`"input": [{"role": "user", "content": "a"}, ` + string(output[1:]))
	require.Equal(t, 200, again.status, "%s", again.body)
	require.Equal(t, "ok", got.Chat.Messages[1].Content)
}

// TestResponseToolChoice checks the values of tool_choice.
func TestResponseToolChoice(t *testing.T) {
	s := servingHarness(t, 1)
	got := s.generating(engines.Usage{}, engines.Chunk{Text: "ok", Finish: engines.FinishStop})
	for value, want := range map[string]*engines.ToolChoice{`"auto"`: nil, `"required"`: {},
		`{"type": "function", "name": "look"}`: {Name: "look", Single: true}} {
		a := s.createResponse(`"input": "a", "tools": [` + lookTool + `], "tool_choice": ` + value)
		require.Equal(t, 200, a.status, "%s", a.body)
		require.Equal(t, want, got.Chat.ToolChoice)
		sameJSON(t, value, a.json(t)["tool_choice"])
	}
	s.createResponse(`"input": "a", "tools": [` + lookTool + `], "tool_choice": "none"`)
	require.Empty(t, got.Chat.Tools)
}

// TestResponseStream checks the events of a stream: their order, numbers and parts, and that they
// add up to the response of the same request without a stream.
func TestResponseStream(t *testing.T) {
	s := servingHarness(t, 1)
	usage := engines.Usage{PromptTokens: 7, CompletionTokens: 9, ReasoningTokens: 3}
	s.generating(usage, thoughtful...)
	plain := s.createResponse(`"input": "a"`).json(t)
	a := s.createResponse(`"input": "a", "stream": true`)
	require.Equal(t, 200, a.status)
	require.Equal(t, "text/event-stream", a.header.Get("Content-Type"))
	var kinds []string
	var final map[string]any
	texts, args, done := map[any]string{}, map[any]string{}, map[any]string{}
	for i, block := range strings.Split(strings.TrimSpace(string(a.body)), "\n\n") {
		name, data, ok := strings.Cut(block, "\n")
		require.True(t, ok, block)
		var event map[string]any
		require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(data, "data: ")), &event))
		require.Equal(t, "event: "+event["type"].(string), name)
		require.EqualValues(t, i, event["sequence_number"])
		kind := strings.TrimPrefix(event["type"].(string), "response.")
		kinds = append(kinds, kind)
		switch id := event["item_id"]; kind {
		case "output_text.delta", "reasoning_text.delta":
			texts[id] += event["delta"].(string)
		case "function_call_arguments.delta":
			args[id] += event["delta"].(string)
		case "output_text.done", "reasoning_text.done":
			require.Equal(t, texts[id], event["text"])
		case "function_call_arguments.done":
			require.Equal(t, args[id], event["arguments"])
		case "output_item.done":
			item := event["item"].(map[string]any)
			done[item["id"]] = item["status"].(string)
		case "completed":
			final = event["response"].(map[string]any)
		}
	}
	require.Equal(t, strings.Fields(`created in_progress
		output_item.added content_part.added reasoning_text.delta reasoning_text.delta reasoning_text.done
			content_part.done output_item.done
		output_item.added content_part.added output_text.delta output_text.delta output_text.done
			content_part.done output_item.done
		output_item.added function_call_arguments.delta function_call_arguments.delta function_call_arguments.done
			output_item.done
		output_item.added function_call_arguments.delta function_call_arguments.done output_item.done
		completed`), kinds)
	require.Len(t, done, 4)
	withoutIDs := func(response map[string]any) string {
		delete(response, "created_at")
		delete(response, "completed_at")
		data := testutil.Marshal(t, response)
		id := strings.TrimPrefix(response["id"].(string), "resp_")
		return strings.NewReplacer(id, "ID", strings.ReplaceAll(id, "-", "")[:16], "ID").Replace(string(data))
	}
	require.Equal(t, withoutIDs(plain), withoutIDs(final))
	require.NotContains(t, string(a.body), "[DONE]")
}

// TestFailedResponseStream checks that a stream that fails ends with response.failed.
func TestFailedResponseStream(t *testing.T) {
	s := servingHarness(t, 1)
	s.replicas.responding(func(_ context.Context, _ domain.Replica, _ engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		if err := emit(engines.Chunk{Text: "a"}); err != nil {
			return engines.Usage{}, err
		}
		return engines.Usage{}, domain.Errorf(domain.Unavailable, "the replica is gone")
	})
	a := s.createResponse(`"input": "a", "stream": true`)
	blocks := strings.Split(strings.TrimSpace(string(a.body)), "\n\n")
	last := blocks[len(blocks)-1]
	require.True(t, strings.HasPrefix(last, "event: response.failed\n"), last)
	require.Contains(t, last, `"error":{"code":"UNAVAILABLE","message":"the replica is gone"}`)
	require.Equal(t, 503, s.createResponse(`"input": "a"`).status)
}

// TestStatefulResponsesAreRejected checks that everything that would need stored responses, and
// every item, part and tool that is not supported, is rejected with an error that names it.
func TestStatefulResponsesAreRejected(t *testing.T) {
	s := servingHarness(t, 1)
	for body, message := range map[string]string{
		`"input": "a", "store": true`:                      "store: must be false, because responses are not stored",
		`"input": "a", "background": true`:                 "background: must be false",
		`"input": "a", "previous_response_id": "resp_1"`:   "previous_response_id: is not supported",
		`"input": "a", "conversation": "conv_1"`:           "conversation: is not supported",
		`"input": "a", "conversation": {"id": "conv_1"}`:   "conversation: is not supported",
		`"input": "a", "prompt": {"id": "p"}`:              "prompt: is not supported",
		`"input": "a", "truncation": "auto"`:               "truncation: must be disabled",
		`"input": [{"type": "item_reference", "id": "m"}]`: "input[0]: must not refer to a stored item",
		`"input": [{"type": "web_search_call"}]`:           `input[0].type: "web_search_call" is not supported`,
		`"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "u"}]}]`: `input[0].content[0].type: ` +
			`"input_file" is not supported`,
		`"input": "a", "tools": [{"type": "web_search"}]`: `tools[0].type: "web_search" is not supported`,
		`"input": "a", "tools": [` + lookTool + `], "tool_choice": {"type": "file_search"}`: `tool_choice.type: ` +
			`"file_search" is not supported`,
		`"input": "a", "text": {"format": {"type": "grammar"}}`: "text.format.type: must be one of text, json_object, " +
			"json_schema",
		`"input": "a", "text": {"format": {"type": "json_schema", "name": "n"}}`: "text.format.schema: is required",
		`"input": "a", "include": ["everything"]`:                                "include[0]: must be one of",
		`"input": []`: "input: must not be an empty list",
		`"store": true, "temperature": 3, "max_output_tokens": 0`: "store: must be false",
	} {
		a := s.createResponse(body)
		require.Equal(t, 400, a.status, "%s: %s", body, a.body)
		require.Contains(t, a.json(t)["error"].(map[string]any)["message"], message)
	}
	all := s.createResponse(`"store": true, "temperature": 3, "max_output_tokens": 0`)
	for _, field := range []string{"input", "store", "temperature", "max_output_tokens"} {
		require.Contains(t, all.json(t)["error"].(map[string]any)["message"], field+": ")
	}
}
