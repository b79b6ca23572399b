package api

import (
	"fmt"
	"strings"

	"anneal/engines"
	"anneal/eventlog/metering"
)

// ChatCompletion is the answer to a conversation.
type ChatCompletion struct {
	ID          string         `json:"id"`
	Object      string         `json:"object"`
	Created     int64          `json:"created"` // Unix seconds
	Model       string         `json:"model"`
	Choices     []ChatChoice   `json:"choices"`
	Usage       *Usage         `json:"usage"`
	PerfMetrics map[string]any `json:"perf_metrics,omitempty"`
}

// ChatChoice is one answer.
type ChatChoice struct {
	Index          int              `json:"index"`
	Message        ChatAnswer       `json:"message"`
	Logprobs       *ContentLogprobs `json:"logprobs"`
	FinishReason   string           `json:"finish_reason"`
	RawOutput      *RawOutput       `json:"raw_output,omitempty"`
	PromptTokenIDs []int            `json:"prompt_token_ids,omitempty"` // when return_token_ids was asked for
	TokenIDs       []int            `json:"token_ids,omitempty"`
}

// ChatAnswer is what the assistant says.
type ChatAnswer struct {
	Role      string         `json:"role"`
	Content   *string        `json:"content"` // null when it only calls tools
	Reasoning string         `json:"reasoning_content,omitempty"`
	Refusal   *string        `json:"refusal"` // always null: a refusal is content
	ToolCalls []ChatToolCall `json:"tool_calls,omitempty"`
}

// ChatToolCall is a function that the model wants called.
type ChatToolCall struct {
	ID       string           `json:"id"`
	Type     string           `json:"type"`
	Function ChatFunctionCall `json:"function"`
}

// ChatFunctionCall names a function and its arguments.
type ChatFunctionCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"` // a JSON object
}

// ChatChunk is one piece of a streamed answer.
type ChatChunk struct {
	ID          string            `json:"id"`
	Object      string            `json:"object"`
	Created     int64             `json:"created"` // Unix seconds
	Model       string            `json:"model"`
	Choices     []ChatChoiceDelta `json:"choices"`
	Usage       *Usage            `json:"usage"`
	PerfMetrics map[string]any    `json:"perf_metrics,omitempty"`
}

// ChatChoiceDelta is what is new of one answer.
type ChatChoiceDelta struct {
	Index          int              `json:"index"`
	Delta          ChatDelta        `json:"delta"`
	Logprobs       *ContentLogprobs `json:"logprobs"`
	FinishReason   *string          `json:"finish_reason"`
	RawOutput      *RawOutput       `json:"raw_output,omitempty"`
	PromptTokenIDs []int            `json:"prompt_token_ids,omitempty"` // when return_token_ids was asked for
	TokenIDs       []int            `json:"token_ids,omitempty"`
}

// ChatDelta is what the assistant says next.
type ChatDelta struct {
	Role      string              `json:"role,omitempty"` // in the first piece of a choice
	Content   *string             `json:"content,omitempty"`
	Reasoning string              `json:"reasoning_content,omitempty"`
	ToolCalls []ChatToolCallDelta `json:"tool_calls,omitempty"`
}

// ChatToolCallDelta is a piece of a tool call: id, type and name come with its
// first, arguments are joined.
type ChatToolCallDelta struct {
	Index    int               `json:"index"`
	ID       string            `json:"id,omitempty"`
	Type     string            `json:"type,omitempty"`
	Function ChatFunctionDelta `json:"function"`
}

// ChatFunctionDelta is a piece of a function call.
type ChatFunctionDelta struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// converse answers POST /inference/v1/chat/completions.
func converse(c *call) (any, error) {
	q, err := c.question(readChat)
	if err != nil {
		return nil, err
	}
	return c.infer(q, chatForm{}, "chatcmpl-")
}

// A chatForm answers with messages. Usage comes with the last finish_reason;
// whoever asks for it by stream_options.include_usage gets it in a chunk
// without choices at the end instead, as clients that ask so expect: they add
// up what they find.
type chatForm struct{}

func (chatForm) whole(g *generation) any {
	answer := ChatCompletion{ID: g.id, Object: "chat.completion", Created: g.Time.Unix(), Model: g.q.model, Usage: &g.usage, PerfMetrics: g.metricsIn()}
	for _, h := range g.all {
		one := ChatChoice{Index: h.index, Message: ChatAnswer{Role: "assistant", Reasoning: h.Reasoning}, Logprobs: contentLogprobs(h.Logprobs), FinishReason: h.Finish, RawOutput: h.raw(g.q)}
		if h.Text != "" || len(h.ToolCalls) == 0 {
			one.Message.Content = &h.Text
		}
		for _, call := range h.ToolCalls {
			one.Message.ToolCalls = append(one.Message.ToolCalls, ChatToolCall{callID(g, h, call), "function", ChatFunctionCall{call.Name, call.Arguments}})
		}
		if g.q.settings.ReturnTokenIDs {
			one.PromptTokenIDs, one.TokenIDs = h.prompt.Tokens, h.Tokens
		}
		answer.Choices = append(answer.Choices, one)
	}
	return answer
}

// callID is the engine's, or one made of the answer's, the choice's and the
// call's, so that each piece of a call gets the same.
func callID(g *generation, h *heard, call engines.ToolCall) string {
	if call.ID != "" {
		return call.ID
	}
	answer := strings.ReplaceAll(strings.TrimPrefix(g.id, "chatcmpl-"), "-", "")
	return fmt.Sprintf("call_%s_%d_%d", answer[:16], h.index, call.Index)
}

func (chatForm) chunk(g *generation, choices ...ChatChoiceDelta) ChatChunk {
	return ChatChunk{ID: g.id, Object: "chat.completion.chunk", Created: g.Time.Unix(), Model: g.q.model, Choices: choices}
}

func (f chatForm) piece(g *generation, h *heard, c engines.Chunk) any {
	one := ChatChoiceDelta{Index: h.index, Logprobs: contentLogprobs(c.Logprobs), Delta: ChatDelta{Reasoning: c.Reasoning}}
	if c.Text != "" {
		one.Delta.Content = &c.Text
	}
	for _, call := range c.ToolCalls {
		piece := ChatToolCallDelta{Index: call.Index, Function: ChatFunctionDelta{call.Name, call.Arguments}}
		if call.Name != "" {
			piece.ID, piece.Type = callID(g, h, call), "function"
		}
		one.Delta.ToolCalls = append(one.Delta.ToolCalls, piece)
	}
	if g.q.settings.ReturnTokenIDs {
		one.TokenIDs = c.Tokens
		if c.Prompt != nil {
			one.PromptTokenIDs = c.Prompt.Tokens
		}
	}
	if c.Text == "" && c.Reasoning == "" && len(c.ToolCalls) == 0 && one.Logprobs == nil && one.TokenIDs == nil && one.PromptTokenIDs == nil {
		return nil
	}
	return f.chunk(g, f.introduced(h, one))
}

// introduced says who speaks in a choice's first piece.
func (chatForm) introduced(h *heard, one ChatChoiceDelta) ChatChoiceDelta {
	if h.begun {
		return one
	}
	one.Delta.Role = "assistant"
	if one.Delta.Content == nil && len(one.Delta.ToolCalls) == 0 {
		one.Delta.Content = new(string)
	}
	return one
}

func (f chatForm) end(g *generation, h *heard, usage *Usage) any {
	chunk := f.chunk(g, f.introduced(h, ChatChoiceDelta{Index: h.index, FinishReason: &h.Finish, RawOutput: h.raw(g.q)}))
	if usage != nil {
		chunk.PerfMetrics = g.metricsIn()
		if !g.q.closeUsage {
			chunk.Usage = usage
		}
	}
	return chunk
}

func (f chatForm) closing(g *generation) any {
	if !g.q.closeUsage {
		return nil
	}
	chunk := f.chunk(g)
	chunk.Choices, chunk.Usage = []ChatChoiceDelta{}, &g.usage
	return chunk
}

func (chatForm) kind() string { return metering.Chat }
