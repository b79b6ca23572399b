package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"anneal/domain"
)

// formats says of which format each shape of row is (spec/gaps.md section 8).
var formats = map[string]string{
	domain.ShapeChat:       domain.FormatChat,
	domain.ShapePreference: domain.FormatChat,
	domain.ShapeCompletion: domain.FormatCompletion,
	domain.ShapePrompt:     domain.FormatRL,
	domain.ShapeSamples:    domain.FormatRL,
}

// A row is one line of a dataset, of any shape.
type row struct {
	Messages     []message                    `json:"messages"`
	Tools        []json.RawMessage            `json:"tools"`
	Prompt       *string                      `json:"prompt"`
	Completion   *string                      `json:"completion"`
	Text         *string                      `json:"text"`
	Input        *conversation                `json:"input"`
	Preferred    []message                    `json:"preferred_output"`
	NonPreferred []message                    `json:"non_preferred_output"`
	Samples      []map[string]json.RawMessage `json:"samples"`
}

type conversation struct {
	Messages []message `json:"messages"`
}

type message struct {
	Role       string            `json:"role"`
	Content    *string           `json:"content"`
	Weight     *float64          `json:"weight"`
	ToolCalls  []json.RawMessage `json:"tool_calls"`
	ToolCallID string            `json:"tool_call_id"`
	Name       string            `json:"name"`
}

// shape tells what a row is. Messages alone may be a conversation to learn or
// a prompt to answer: the format decides, or else who has the last word.
func (r *row) shape(format string) string {
	switch {
	case r.Samples != nil:
		return domain.ShapeSamples
	case r.Input != nil || r.Preferred != nil || r.NonPreferred != nil:
		return domain.ShapePreference
	case r.Messages != nil && format == domain.FormatRL:
		return domain.ShapePrompt
	case r.Messages != nil && format == "" && len(r.Messages) > 0 && r.Messages[len(r.Messages)-1].Role == "user":
		return domain.ShapePrompt
	case r.Messages != nil:
		return domain.ShapeChat
	case r.Prompt != nil || r.Completion != nil || r.Text != nil:
		return domain.ShapeCompletion
	}
	return ""
}

// conversation checks messages and counts what they bring. The last one must
// be of the given role.
func (k *rowCheck) conversation(field string, messages []message, last string) error {
	if len(messages) == 0 {
		return fmt.Errorf("%s must not be empty", field)
	}
	for i, m := range messages {
		if err := m.check(i); err != nil {
			return fmt.Errorf("%s[%d]%w", field, i, err)
		}
		if m.Content != nil {
			k.text += len(*m.Content)
		}
	}
	k.turns += len(messages)
	if role := messages[len(messages)-1].Role; role != last {
		return fmt.Errorf("the last of %s must be from the %s, not from the %s", field, last, role)
	}
	return nil
}

func (m message) check(place int) error {
	switch m.Role {
	case "system":
		if place > 0 {
			return errors.New(".role: system may only come first")
		}
	case "user", "assistant", "tool":
	default:
		return errors.New(".role must be system, user, assistant or tool")
	}
	switch {
	case m.Content == nil && (m.Role != "assistant" || len(m.ToolCalls) == 0):
		return errors.New(".content is required")
	case m.Weight != nil && *m.Weight != 0 && *m.Weight != 1:
		return errors.New(".weight must be 0 or 1")
	}
	return nil
}

func (k *rowCheck) preference(r *row) error {
	if r.Input == nil {
		return errors.New("input with messages is required")
	}
	if err := k.conversation("input.messages", r.Input.Messages, lastRole(r.Input.Messages)); err != nil {
		return err
	}
	for _, side := range []struct {
		field    string
		messages []message
	}{{"preferred_output", r.Preferred}, {"non_preferred_output", r.NonPreferred}} {
		if len(side.messages) != 1 {
			return fmt.Errorf("%s must hold one message of the assistant", side.field)
		}
		if err := k.conversation(side.field, side.messages, "assistant"); err != nil {
			return err
		}
	}
	return nil
}

func lastRole(messages []message) string {
	if len(messages) == 0 {
		return "user"
	}
	return messages[len(messages)-1].Role
}

func (k *rowCheck) samples(r *row) error {
	if len(r.Samples) == 0 {
		return errors.New("samples must not be empty")
	}
	for i, sample := range r.Samples {
		var messages []message
		if err := json.Unmarshal(sample["messages"], &messages); err != nil {
			return fmt.Errorf("samples[%d].messages must be a list of messages", i)
		}
		if err := k.conversation(fmt.Sprintf("samples[%d].messages", i), messages, "assistant"); err != nil {
			return err
		}
		metrics := 0
		for name, value := range sample {
			if name == "messages" {
				continue
			}
			var score float64
			if err := json.Unmarshal(value, &score); err != nil || score < 0 || score > 1 {
				return fmt.Errorf("samples[%d].%s must be a number from 0 to 1", i, name)
			}
			metrics++
		}
		if metrics == 0 {
			return fmt.Errorf("samples[%d] has no metric: give one or more, each from 0 to 1", i)
		}
	}
	return nil
}

// explainRow says what is wrong with a row that cannot be read.
func explainRow(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return fmt.Errorf("the row is not JSON: %w", err)
	}
	expected := "an object"
	switch kind := wrong.Type.Kind().String(); {
	case kind == "string":
		expected = "text"
	case kind == "slice":
		expected = "a list"
	case strings.HasPrefix(kind, "float"):
		expected = "a number"
	}
	return fmt.Errorf("%s must be %s, not %s", wrong.Field, expected, wrong.Value)
}
