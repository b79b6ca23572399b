package train

import (
	"encoding/json"
	"errors"
	"fmt"

	"anneal/domain/rows"
	"anneal/engines"
	"anneal/engines/embedded/tokenizer"
)

// A talk is the conversation of a row, and the weights of its turns.
type talk struct {
	engines.Chat
	weights []*float64 // nil is 1
}

// talkOf is messages, and what they may call.
func talkOf(messages []rows.Message, tools json.RawMessage) (*talk, error) {
	t := &talk{}
	if len(tools) > 0 {
		if err := json.Unmarshal(tools, &t.Tools); err != nil {
			return nil, fmt.Errorf("tools: %w", err)
		}
	}
	for i, m := range messages {
		turn := engines.Message{Role: m.Role, Content: m.Content, ToolCallID: m.ToolCallID, Name: m.Name}
		for k, raw := range m.ToolCalls {
			var call struct {
				ID       string `json:"id"`
				Function struct {
					Name      string `json:"name"`
					Arguments string `json:"arguments"` // JSON
				} `json:"function"`
			}
			if err := json.Unmarshal(raw, &call); err != nil {
				return nil, fmt.Errorf("messages[%d].tool_calls[%d]: %w", i, k, err)
			}
			turn.ToolCalls = append(turn.ToolCalls, engines.ToolCall{ID: call.ID, Name: call.Function.Name, Arguments: call.Function.Arguments})
		}
		t.Messages, t.weights = append(t.Messages, turn), append(t.weights, m.Weight)
	}
	return t, nil
}

// chat renders messages, of which nothing need be learnt.
func (r *reader) chat(messages []rows.Message, tools json.RawMessage) ([]int, error) {
	t, err := talkOf(messages, tools)
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
