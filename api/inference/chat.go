package inference

import (
	"fmt"
	"strings"

	"anneal/api/request"
	"anneal/engines"
	"anneal/eventlog/metering"
)

// ChatCompletion is the response to a chat completion request.
type ChatCompletion struct {
	ID          string         `json:"id"`
	Object      string         `json:"object"`
	Created     int64          `json:"created"` // Unix seconds
	Model       string         `json:"model"`
	Choices     []ChatChoice   `json:"choices"`
	Usage       *Usage         `json:"usage"`
	PerfMetrics map[string]any `json:"perf_metrics,omitempty"`
}

// ChatChoice is one generated message.
type ChatChoice struct {
	Index          int              `json:"index"`
	Message        ChatAnswer       `json:"message"`
	Logprobs       *ContentLogprobs `json:"logprobs"`
	FinishReason   string           `json:"finish_reason"`
	RawOutput      *RawOutput       `json:"raw_output,omitempty"`
	PromptTokenIDs []int            `json:"prompt_token_ids,omitempty"` // only if the request has return_token_ids
	TokenIDs       []int            `json:"token_ids,omitempty"`
}

// ChatAnswer is the message of the assistant that the model generated.
type ChatAnswer struct {
	Role      string         `json:"role"`
	Content   *string        `json:"content"` // null when the message consists of tool calls
	Reasoning string         `json:"reasoning_content,omitempty"`
	Refusal   *string        `json:"refusal"` // always null: content contains refusals too
	ToolCalls []ChatToolCall `json:"tool_calls,omitempty"`
}

// ChatToolCall is a call of a tool, as the model generated it.
type ChatToolCall struct {
	ID       string           `json:"id"`
	Type     string           `json:"type"`
	Function ChatFunctionCall `json:"function"`
}

// ChatFunctionCall is the name and the arguments of a function call.
type ChatFunctionCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"` // text of a JSON object
}

// ChatChunk is one event of a streamed chat completion.
type ChatChunk struct {
	ID          string            `json:"id"`
	Object      string            `json:"object"`
	Created     int64             `json:"created"` // Unix seconds
	Model       string            `json:"model"`
	Choices     []ChatChoiceDelta `json:"choices"`
	Usage       *Usage            `json:"usage"`
	PerfMetrics map[string]any    `json:"perf_metrics,omitempty"`
}

// ChatChoiceDelta is what an event of a stream adds to a choice.
type ChatChoiceDelta struct {
	Index          int              `json:"index"`
	Delta          ChatDelta        `json:"delta"`
	Logprobs       *ContentLogprobs `json:"logprobs"`
	FinishReason   *string          `json:"finish_reason"`
	RawOutput      *RawOutput       `json:"raw_output,omitempty"`
	PromptTokenIDs []int            `json:"prompt_token_ids,omitempty"` // only if the request has return_token_ids
	TokenIDs       []int            `json:"token_ids,omitempty"`
}

// ChatDelta is what an event of a stream adds to the assistant's message.
type ChatDelta struct {
	Role      string              `json:"role,omitempty"` // only in the first event of a choice
	Content   *string             `json:"content,omitempty"`
	Reasoning string              `json:"reasoning_content,omitempty"`
	ToolCalls []ChatToolCallDelta `json:"tool_calls,omitempty"`
}

// ChatToolCallDelta is what an event of a stream adds to a tool call. The first event of the call
// has its ID, type and name; the client concatenates the arguments of all events.
type ChatToolCallDelta struct {
	Index    int               `json:"index"`
	ID       string            `json:"id,omitempty"`
	Type     string            `json:"type,omitempty"`
	Function ChatFunctionDelta `json:"function"`
}

// ChatFunctionDelta is what an event of a stream adds to a function call.
type ChatFunctionDelta struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// createChatCompletion handles POST /inference/v1/chat/completions.
func createChatCompletion(c *call) (any, error) {
	q, err := c.readRequest(readChat)
	if err != nil {
		return nil, err
	}
	return c.generate(q, chatEncoder{}, "chatcmpl-")
}

// A chatEncoder encodes chat completions. The usage is in the event with the last finish_reason or,
// with stream_options.include_usage, in another event after it that has no choices. It is never in
// both, because clients add up all usages in a stream.
type chatEncoder struct{}

func (chatEncoder) full(g *generation) any {
	response := ChatCompletion{ID: g.id, Object: "chat.completion", Created: g.Time.Unix(), Model: g.q.model,
		Usage: &g.usage, PerfMetrics: g.bodyMetrics()}
	for _, c := range g.choices {
		out := ChatChoice{Index: c.index, Message: ChatAnswer{Role: "assistant", Reasoning: c.Reasoning},
			Logprobs: contentLogprobs(c.Logprobs), FinishReason: c.Finish, RawOutput: c.rawOutput(g.q)}
		if c.Text != "" || len(c.ToolCalls) == 0 {
			out.Message.Content = &c.Text
		}
		for _, call := range c.ToolCalls {
			out.Message.ToolCalls = append(out.Message.ToolCalls,
				ChatToolCall{callID(g, c, call), "function", ChatFunctionCall{call.Name, call.Arguments}})
		}
		if g.q.settings.ReturnTokenIDs {
			out.PromptTokenIDs, out.TokenIDs = c.prompt.Tokens, c.Tokens
		}
		response.Choices = append(response.Choices, out)
	}
	return response
}

// callID returns the ID that the engine gave to a tool call. If there is none, it derives the ID
// from the ID of the response and the indexes of the choice and the call, so that all deltas of a
// call have the same ID.
func callID(g *generation, c *choice, call engines.ToolCall) string {
	if call.ID != "" {
		return call.ID
	}
	id := strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(g.id, "chatcmpl-"), "resp_"), "-", "")
	return fmt.Sprintf("call_%s_%d_%d", id[:16], c.index, call.Index)
}

func (chatEncoder) event(g *generation, choices ...ChatChoiceDelta) ChatChunk {
	return ChatChunk{ID: g.id, Object: "chat.completion.chunk", Created: g.Time.Unix(), Model: g.q.model,
		Choices: choices}
}

func (e chatEncoder) chunk(g *generation, c *choice, chunk engines.Chunk) any {
	out := ChatChoiceDelta{Index: c.index, Logprobs: contentLogprobs(chunk.Logprobs),
		Delta: ChatDelta{Reasoning: chunk.Reasoning}}
	if chunk.Text != "" {
		out.Delta.Content = &chunk.Text
	}
	for _, call := range chunk.ToolCalls {
		delta := ChatToolCallDelta{Index: call.Index, Function: ChatFunctionDelta{call.Name, call.Arguments}}
		if call.Name != "" {
			delta.ID, delta.Type = callID(g, c, call), "function"
		}
		out.Delta.ToolCalls = append(out.Delta.ToolCalls, delta)
	}
	if g.q.settings.ReturnTokenIDs {
		out.TokenIDs = chunk.Tokens
		if chunk.Prompt != nil {
			out.PromptTokenIDs = chunk.Prompt.Tokens
		}
	}
	if chunk.Text == "" && chunk.Reasoning == "" && len(chunk.ToolCalls) == 0 && out.Logprobs == nil &&
		out.TokenIDs == nil && out.PromptTokenIDs == nil {
		return nil
	}
	return e.event(g, e.withRole(c, out))
}

// withRole returns out, a delta of the choice c. If out is in the first event of the choice,
// withRole adds the role, and empty content if the delta has no content, as OpenAI's API does.
func (chatEncoder) withRole(c *choice, out ChatChoiceDelta) ChatChoiceDelta {
	if c.started {
		return out
	}
	out.Delta.Role = "assistant"
	if out.Delta.Content == nil && len(out.Delta.ToolCalls) == 0 {
		out.Delta.Content = new(string)
	}
	return out
}

func (e chatEncoder) finish(g *generation, c *choice, usage *Usage) any {
	out := ChatChoiceDelta{Index: c.index, FinishReason: &c.Finish, RawOutput: c.rawOutput(g.q)}
	event := e.event(g, e.withRole(c, out))
	if usage != nil {
		event.PerfMetrics = g.bodyMetrics()
		if !g.q.usageChunk {
			event.Usage = usage
		}
	}
	return event
}

func (e chatEncoder) trailer(g *generation) any {
	if !g.q.usageChunk {
		return nil
	}
	event := e.event(g)
	event.Choices, event.Usage = []ChatChoiceDelta{}, &g.usage
	return event
}

func (chatEncoder) failure(*generation, request.InferenceErrorBody) any { return nil }

func (chatEncoder) endsWithDone() bool { return true }

func (chatEncoder) kind() string { return metering.Chat }
