package chat

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/grammar"
)

// Thinking is how an answer to a conversation that was rendered as text may
// begin with reasoning; nil where it may not.
func (t *Template) Thinking(r *engines.Reasoning, text string) *grammar.Thinking {
	text = strings.TrimSpace(text)
	off := r != nil && r.Effort == "none" || strings.HasSuffix(text, thinkClose)
	begun := strings.HasSuffix(text, thinkOpen)
	if !t.Thinks() || off && !begun {
		return nil
	}
	return &grammar.Thinking{Open: thinkOpen, Close: thinkClose, Begun: begun}
}

// Thinks tells whether the model's reasoning lies between the marks that a
// Reader knows.
func (t *Template) Thinks() bool {
	return strings.Contains(t.source, thinkOpen) || strings.Contains(t.source, "enable_thinking")
}

// probe is a function whose call shows how a template writes calls.
const probe = "anneal_probe"

var callKey = regexp.MustCompile(`^"\s*,\s*"(?:arguments|parameters)"\s*:\s*`)

// ForcedCalls is the grammar of the calls that an answer must be. The fault is
// InvalidArgument for a function that is not among the tools, and for a template
// that writes calls in no form that a Reader reads.
func (t *Template) ForcedCalls(tools []json.RawMessage, c *engines.Calls) (*grammar.Grammar, error) {
	functions := functions(tools, c.Name)
	if len(functions) == 0 {
		return nil, domain.Errorf(domain.InvalidArgument, "toolChoice: names a function that is not among the tools: add it to them, or name another")
	}
	form, err := t.callForm()
	if err != nil {
		return nil, err
	}
	return grammar.Calls(form.CallForm, functions, form.many && !c.Single)
}

// OfferedCalls is the grammar of an answer that may call the tools, by a
// template that marks calls.
func (t *Template) OfferedCalls(tools []json.RawMessage, thinking *grammar.Thinking) (*grammar.Grammar, error) {
	form, err := t.callForm()
	if err != nil {
		return nil, err
	}
	return grammar.Offered(thinking, callOpen, form.CallForm, functions(tools, ""))
}

// MarksCalls tells whether calls stand behind a mark that no other text has.
func (t *Template) MarksCalls() bool {
	form, err := t.callForm()
	return err == nil && strings.HasPrefix(form.Before, callOpen)
}

// A callForm is how calls are written, and whether several may follow one another.
type callForm struct {
	grammar.CallForm
	many bool
}

// readCallForm is how the template writes the calls of an assistant's turn. The
// fault is InvalidArgument for one that has no form that a Reader reads.
func (t *Template) readCallForm() (form callForm, err error) {
	const arguments = `{"anneal_key": "anneal_value"}`
	c := &engines.Chat{
		Messages: []engines.Message{
			{Role: "user", Content: "anneal_question"},
			{Role: "assistant", ToolCalls: []engines.ToolCall{{ID: "anneal000", Name: probe, Arguments: arguments}}},
		},
		Tools: []json.RawMessage{json.RawMessage(`{"type":"function","function":{"name":"` + probe + `","description":"","parameters":{"type":"object","properties":{}}}}`)},
	}
	refused := domain.Errorf(domain.InvalidArgument,
		"toolChoice: this model's chat template writes calls in no form that can be forced: use auto, and say in a message which function is wanted")
	text, err := t.render(c, nil, newMark(t, c))
	if err != nil {
		return form, refused
	}
	_, turn, _ := strings.Cut(text, "anneal_question") // the tools may be shown before it
	before, after, found := strings.Cut(turn, `{"name": "`+probe)
	key := callKey.FindString(after)
	value := regexp.MustCompile(`^\{\s*"anneal_key"\s*:\s*"anneal_value"\s*\}`).FindString(after[len(key):])
	if !found || key == "" || value == "" {
		return form, refused
	}
	form.CallForm = grammar.CallForm{Before: `{"name": "`, Between: key, After: "}"}
	rest := after[len(key)+len(value):]
	open := strings.LastIndex(before, callOpen)
	switch last := strings.TrimSpace(before); {
	case open >= 0 && strings.TrimSpace(before[open+len(callOpen):]) == "":
		end := strings.Index(rest, callClose)
		if end < 0 || strings.TrimSpace(rest[:end]) != "}" {
			return form, refused
		}
		form.Before = before[open:] + form.Before
		form.After = rest[:end] + callClose
		form.Apart = "\n"
		form.many = true
		return form, nil
	case strings.HasSuffix(last, "["):
		form.Begin, form.End, form.Apart = "[", "]", ", "
		form.many = true
		return form, nil
	case strings.HasSuffix(last, ":"), !strings.HasPrefix(rest, "}"): // inside of something else
		return form, refused
	}
	return form, nil
}

// Strict tells whether calls of some of the tools must conform to their schemas.
func Strict(tools []json.RawMessage) bool {
	return slices.ContainsFunc(functions(tools, ""), func(f grammar.Function) bool { return f.Strict })
}

// functions are those of the tools that an answer must call: the one of that
// name, or all of them.
func functions(tools []json.RawMessage, name string) []grammar.Function {
	var functions []grammar.Function
	for i, raw := range tools {
		var tool struct {
			Function struct {
				Name       string
				Parameters json.RawMessage
				Strict     bool
			}
		}
		if json.Unmarshal(raw, &tool) != nil || name != "" && tool.Function.Name != name {
			continue
		}
		f := tool.Function
		if slices.Contains([]string{"", "null"}, string(f.Parameters)) {
			f.Parameters = nil
		}
		functions = append(functions, grammar.Function{Name: f.Name, Parameters: f.Parameters, Strict: f.Strict, Field: fmt.Sprintf("tools[%d].function.parameters", i)})
	}
	return functions
}
