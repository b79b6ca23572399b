package rows

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"anneal/domain"
)

// A Message is one turn of a conversation.
type Message struct {
	Role       string            `json:"role"`
	Content    string            `json:"content"`
	Weight     *float64          `json:"weight,omitempty"` // 0: not learnt from; absent is 1
	ToolCalls  []json.RawMessage `json:"tool_calls,omitempty"`
	ToolCallID string            `json:"tool_call_id,omitempty"`
	Name       string            `json:"name,omitempty"`
}

// A Row is one example, in one of the five shapes.
type Row struct {
	Shape      string
	Messages   []Message // chat, prompt; the common part of preference
	Prompt     string    // completion
	Completion string    // completion; of a {text} row all of it
	Preferred  []Message // preference
	Rejected   []Message // preference
	Samples    int       // samples
	Bytes      int       // of text
	Turns      int
}

type wireRow struct {
	Messages   *[]json.RawMessage `json:"messages"`
	Prompt     *json.RawMessage   `json:"prompt"`
	Completion *json.RawMessage   `json:"completion"`
	Text       *json.RawMessage   `json:"text"`
	Input      *struct {
		Messages []json.RawMessage `json:"messages"`
	} `json:"input"`
	Preferred *[]json.RawMessage `json:"preferred_output"`
	Rejected  *[]json.RawMessage `json:"non_preferred_output"`
	Samples   *[]struct {
		Messages []json.RawMessage `json:"messages"`
	} `json:"samples"`
}

// Parse reads one line. hint is the shape that the rows before had, or "". It
// answers every rule that the row breaks; Shape is "" when none can be told.
func Parse(line []byte, hint string) (Row, []string) {
	var wire wireRow
	if err := json.Unmarshal(line, &wire); err != nil {
		return Row{}, []string{explain(err)}
	}
	p := &parser{}
	var row Row
	switch {
	case wire.Messages != nil:
		row = p.conversation(*wire.Messages, hint)
	case wire.Input != nil || wire.Preferred != nil || wire.Rejected != nil:
		row = p.preference(wire)
	case wire.Samples != nil:
		row = Row{Shape: domain.ShapeSamples, Samples: len(*wire.Samples)}
		if row.Samples == 0 {
			p.add("samples must not be empty")
		}
		for i, s := range *wire.Samples {
			row.count(p.messages(fmt.Sprintf("samples[%d].messages", i), s.Messages))
		}
	case wire.Text != nil:
		row = Row{Shape: domain.ShapeCompletion, Completion: p.text("text", wire.Text), Turns: 1}
		row.Bytes = len(row.Completion)
	case wire.Prompt != nil || wire.Completion != nil:
		row = Row{Shape: domain.ShapeCompletion, Prompt: p.text("prompt", wire.Prompt), Completion: p.text("completion", wire.Completion), Turns: 1}
		row.Bytes = len(row.Prompt) + len(row.Completion)
		if row.Completion == "" && len(p.reasons) == 0 {
			p.add("completion must not be empty")
		}
	default:
		p.add("the row has none of messages, prompt and completion, text, input, samples")
	}
	return row, p.reasons
}

type parser struct{ reasons []string }

func (p *parser) add(format string, args ...any) {
	p.reasons = append(p.reasons, fmt.Sprintf(format, args...))
}

func (p *parser) conversation(raw []json.RawMessage, hint string) Row {
	messages := p.messages("messages", raw)
	row := Row{Shape: domain.ShapeChat, Messages: messages}
	row.count(messages)
	last := ""
	if len(messages) > 0 {
		last = messages[len(messages)-1].Role
	}
	switch {
	case hint == domain.ShapePrompt || hint != domain.ShapeChat && last == "user":
		row.Shape = domain.ShapePrompt
		if last != "user" && last != "" {
			p.add("messages: the last one must be of role user")
		}
	case last != "assistant" && last != "":
		p.add("messages: the last one must be of role assistant")
	}
	return row
}

func (p *parser) preference(wire wireRow) Row {
	row := Row{Shape: domain.ShapePreference}
	if wire.Input == nil {
		p.add("input is missing; it must hold messages")
	} else {
		row.Messages = p.messages("input.messages", wire.Input.Messages)
	}
	output := func(field string, raw *[]json.RawMessage) []Message {
		if raw == nil || len(*raw) != 1 {
			p.add("%s must hold one message of role assistant", field)
			return nil
		}
		messages := p.messages(field, *raw)
		if len(messages) == 1 && messages[0].Role != "assistant" {
			p.add("%s[0].role must be assistant", field)
		}
		return messages
	}
	row.Preferred = output("preferred_output", wire.Preferred)
	row.Rejected = output("non_preferred_output", wire.Rejected)
	row.count(row.Messages)
	row.count(row.Preferred)
	row.count(row.Rejected)
	return row
}

func (p *parser) messages(field string, raw []json.RawMessage) []Message {
	if len(raw) == 0 {
		p.add("%s must not be empty", field)
	}
	messages := make([]Message, len(raw))
	for i, text := range raw {
		messages[i] = p.message(fmt.Sprintf("%s[%d]", field, i), i, text)
	}
	return messages
}

func (p *parser) message(field string, index int, raw json.RawMessage) Message {
	var m struct {
		Message
		Content *json.RawMessage `json:"content"`
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		p.add("%s: %s", field, explain(err))
		return m.Message
	}
	switch m.Role {
	case "":
		p.add("%s.role is missing; it must be system, user, assistant or tool", field)
	case "system":
		if index > 0 {
			p.add("%s.role: system may only come first", field)
		}
	case "tool":
		if m.ToolCallID == "" {
			p.add("%s.tool_call_id is missing; a tool's message answers a call", field)
		}
	case "user", "assistant":
	default:
		p.add("%s.role %q must be system, user, assistant or tool", field, clip(m.Role))
	}
	if m.Weight != nil && *m.Weight != 0 && *m.Weight != 1 {
		p.add("%s.weight must be 0 or 1", field)
	}
	switch {
	case m.Content != nil && !bytes.Equal(*m.Content, []byte("null")):
		m.Message.Content = p.text(field+".content", m.Content)
	case len(m.ToolCalls) == 0 || m.Role != "assistant":
		p.add("%s.content is missing; it must be a string", field)
	}
	return m.Message
}

func (p *parser) text(field string, raw *json.RawMessage) (text string) {
	if raw == nil {
		p.add("%s is missing; it must be a string", field)
		return ""
	}
	if json.Unmarshal(*raw, &text) != nil {
		p.add("%s must be a string", field)
	}
	return text
}

func (r *Row) count(messages []Message) {
	for _, m := range messages {
		r.Bytes += len(m.Content)
		if m.Role == "user" || m.Role == "assistant" {
			r.Turns++
		}
	}
}

// explain says what is wrong with a piece of JSON.
func explain(err error) string {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Sprintf("not valid JSON at byte %d: %s", syntax.Offset, strings.TrimPrefix(err.Error(), "json: "))
	case errors.As(err, &kind) && kind.Field == "":
		return "must be a JSON object"
	case errors.As(err, &kind):
		return fmt.Sprintf("%s must be %s, not %s", kind.Field, wanted(kind.Type.Kind().String()), kind.Value)
	}
	return err.Error()
}

func wanted(kind string) string {
	switch kind {
	case "slice":
		return "a list"
	case "struct":
		return "an object"
	case "float64":
		return "a number"
	}
	return "a " + kind
}

func clip(s string) string {
	if runes := []rune(s); len(runes) > 32 {
		return string(runes[:32]) + "…"
	}
	return s
}
