package train

import (
	"encoding/json"
	"errors"
	"fmt"

	"anneal/domain/rows"
	"anneal/engines"
	"anneal/engines/embedded/tokenizer"
)

// message is a turn of a row; content may be null where a turn calls tools.
type message struct {
	Role       string     `json:"role"`
	Content    *string    `json:"content"`
	Weight     *float64   `json:"weight"`
	ToolCalls  []toolCall `json:"tool_calls"`
	ToolCallID string     `json:"tool_call_id"`
	Name       string     `json:"name"`
}

type toolCall struct {
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"` // JSON
	} `json:"function"`
}

// A talk is the conversation of a row, and the weights of its turns.
type talk struct {
	engines.Chat
	weights []*float64 // nil is 1
}

// conversation checks and renders messages.
func (r *reader) conversation(messages []message, tools []json.RawMessage) ([]int, []bool, error) {
	t, err := talkOf(messages, tools)
	if err != nil {
		return nil, nil, err
	}
	if last := messages[len(messages)-1]; last.Role != "assistant" {
		return nil, nil, fmt.Errorf("messages: the last is the assistant's, not %q", last.Role)
	}
	return r.rendered(t)
}

// chat renders messages that were checked, and what they may call.
func (r *reader) chat(messages []rows.Message, tools json.RawMessage) ([]int, error) {
	plain := make([]message, len(messages))
	for i := range messages {
		m := &messages[i]
		plain[i] = message{Role: m.Role, Content: &m.Content, ToolCallID: m.ToolCallID, Name: m.Name, ToolCalls: make([]toolCall, len(m.ToolCalls))}
		for k, call := range m.ToolCalls {
			if err := json.Unmarshal(call, &plain[i].ToolCalls[k]); err != nil {
				return nil, fmt.Errorf("messages[%d].tool_calls[%d]: %w", i, k, err)
			}
		}
	}
	var offered []json.RawMessage
	if len(tools) > 0 {
		if err := json.Unmarshal(tools, &offered); err != nil {
			return nil, fmt.Errorf("tools: %w", err)
		}
	}
	t, err := talkOf(plain, offered)
	if err != nil {
		return nil, err
	}
	ids, _, err := r.rendered(t)
	return ids, err
}

// rendered is a conversation as the model's template writes it.
func (r *reader) rendered(t *talk) ([]int, []bool, error) {
	switch {
	case !r.given && (r.tokens.Chats() || r.template == nil && r.noChat == nil):
		turns, err := t.plain()
		if err != nil {
			return nil, nil, err
		}
		return r.tokens.Chat(turns)
	case r.noChat != nil:
		return nil, nil, r.noChat
	}
	return r.template.Lesson(&t.Chat, func(i int) bool { return t.weights[i] == nil || *t.weights[i] != 0 })
}

// talkOf checks messages.
func talkOf(messages []message, tools []json.RawMessage) (*talk, error) {
	t := &talk{Chat: engines.Chat{Tools: tools}}
	for i, m := range messages {
		switch {
		case m.Role == "system" && i > 0:
			return nil, fmt.Errorf("messages[%d].role: a system message comes first or not at all", i)
		case m.Content == nil && (m.Role != "assistant" || len(m.ToolCalls) == 0):
			return nil, fmt.Errorf("messages[%d].content: is missing: give a text", i)
		case m.Weight != nil && *m.Weight != 0 && *m.Weight != 1:
			return nil, fmt.Errorf("messages[%d].weight: must be 0 or 1", i)
		}
		turn := engines.Message{Role: m.Role, ToolCallID: m.ToolCallID, Name: m.Name}
		if m.Content != nil {
			turn.Content = *m.Content
		}
		for _, call := range m.ToolCalls {
			turn.ToolCalls = append(turn.ToolCalls, engines.ToolCall{ID: call.ID, Name: call.Function.Name, Arguments: call.Function.Arguments})
		}
		t.Messages, t.weights = append(t.Messages, turn), append(t.weights, m.Weight)
	}
	return t, nil
}

// plain is the turns for a template that knows texts alone.
func (t *talk) plain() ([]tokenizer.Message, error) {
	if len(t.Tools) > 0 {
		return nil, errors.New("tools: this model's chat template has no place for tools: leave them out, or use a model that was trained with tools")
	}
	turns := make([]tokenizer.Message, len(t.Messages))
	for i, m := range t.Messages {
		if m.Role == "tool" || len(m.ToolCalls) > 0 {
			return nil, fmt.Errorf("messages[%d]: this model's chat template has no place for calls of tools and their answers: leave such rows out, or use a model that was trained with tools", i)
		}
		turns[i] = tokenizer.Message{Role: m.Role, Content: m.Content, Weight: t.weights[i]}
	}
	return turns, nil
}
