package train

import (
	"encoding/json"
	"errors"
	"fmt"

	"anneal/domain/rows"
	"anneal/engines"
	"anneal/engines/embedded/tokenizer"
)

// A conversation has the messages of a dataset row, and the loss weights of the turns.
type conversation struct {
	engines.Chat
	weights []*float64 // loss weight of each turn; nil stands for 1
}

func newConversation(messages []rows.Message, tools json.RawMessage) (*conversation, error) {
	t := &conversation{}
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
					Arguments string `json:"arguments"` // arguments of the call: a JSON object as text
				} `json:"function"`
			}
			if err := json.Unmarshal(raw, &call); err != nil {
				return nil, fmt.Errorf("messages[%d].tool_calls[%d]: %w", i, k, err)
			}
			turn.ToolCalls = append(turn.ToolCalls, engines.ToolCall{
				ID: call.ID, Name: call.Function.Name, Arguments: call.Function.Arguments,
			})
		}
		t.Messages, t.weights = append(t.Messages, turn), append(t.weights, m.Weight)
	}
	return t, nil
}

// chat tokenizes messages as a prompt, without targets of the loss.
func (r *reader) chat(messages []rows.Message, tools json.RawMessage) ([]int, error) {
	t, err := newConversation(messages, tools)
	if err != nil {
		return nil, err
	}
	ids, _, err := r.renderChat(t)
	return ids, err
}

// renderChat tokenizes a conversation with the template of the job or the model. The second result
// reports for each token whether it is a target of the loss.
func (r *reader) renderChat(t *conversation) ([]int, []bool, error) {
	switch {
	case !r.given && (r.tokens.Chats() || r.template == nil && r.parseErr == nil):
		turns, err := t.plain()
		if err != nil {
			return nil, nil, err
		}
		return r.tokens.Chat(turns)
	case r.parseErr != nil:
		return nil, nil, r.parseErr
	}
	return r.template.Targets(&t.Chat, func(i int) bool { return t.weights[i] == nil || *t.weights[i] != 0 })
}

// plain returns the turns for a template that supports only text. It returns an error if the
// conversation has tools or other parts that such a template would ignore.
func (t *conversation) plain() ([]tokenizer.Message, error) {
	if len(t.Tools) > 0 {
		return nil, errors.New("tools: are not supported by this model's chat template: " +
			"omit them, or use a model that was trained with tools")
	}
	turns := make([]tokenizer.Message, len(t.Messages))
	for i, m := range t.Messages {
		if m.Role == "tool" || len(m.ToolCalls) > 0 {
			return nil,
				fmt.Errorf("messages[%d]: tool calls and their results are not supported by this model's chat template: "+
					"omit rows with tool calls, or use a model that was trained with tools", i)
		}
		turns[i] = tokenizer.Message{Role: m.Role, Content: m.Content, Weight: t.weights[i]}
	}
	return turns, nil
}
