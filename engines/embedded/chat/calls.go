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

// Thinking returns the delimiters of the reasoning with which a completion may begin, and whether
// text, the rendered conversation, already ends with the opening one. It returns nil if the
// completion cannot begin with reasoning.
func (t *Template) Thinking(r *engines.Reasoning, text string) *grammar.Thinking {
	text = strings.TrimSpace(text)
	off := r != nil && r.Effort == "none" || strings.HasSuffix(text, thinkClose)
	started := strings.HasSuffix(text, thinkOpen)
	if !t.Thinks() || off && !started {
		return nil
	}
	return &grammar.Thinking{Open: thinkOpen, Close: thinkClose, Started: started}
}

// Thinks reports whether the template delimits reasoning by <think> and </think>.
func (t *Template) Thinks() bool {
	return strings.Contains(t.source, thinkOpen) || strings.Contains(t.source, "enable_thinking")
}

// probe is the name of a function that is only rendered to detect how the template writes tool
// calls.
const probe = "anneal_probe"

var callKey = regexp.MustCompile(`^"\s*,\s*"(?:arguments|parameters)"\s*:\s*`)

// ForcedCalls returns the grammar of a completion that must consist of tool calls. It returns
// InvalidArgument if c names an unknown function, or if a Reader cannot parse the calls of this
// template.
func (t *Template) ForcedCalls(tools []json.RawMessage, c *engines.ToolChoice) (*grammar.Grammar, error) {
	functions := functions(tools, c.Name)
	if len(functions) == 0 {
		return nil, domain.Errorf(domain.InvalidArgument,
			"toolChoice: tools has no function %q to call: add it to tools, or choose another function", c.Name)
	}
	form, err := t.callForm()
	if err != nil {
		return nil, err
	}
	return grammar.Calls(form.CallForm, functions, form.many && !c.Single)
}

// OfferedCalls returns the grammar of a completion that may contain tool calls. If thinking is not
// nil, the completion may begin with that reasoning. The template must delimit calls, see
// DelimitsCalls.
func (t *Template) OfferedCalls(tools []json.RawMessage, thinking *grammar.Thinking) (*grammar.Grammar, error) {
	form, err := t.callForm()
	if err != nil {
		return nil, err
	}
	return grammar.Offered(thinking, callOpen, form.CallForm, functions(tools, ""))
}

// DelimitsCalls reports whether the template begins tool calls with <tool_call>.
func (t *Template) DelimitsCalls() bool {
	form, err := t.callForm()
	return err == nil && strings.HasPrefix(form.Before, callOpen)
}

// A callForm is the syntax in which a template writes tool calls. many reports whether a completion
// may contain several calls.
type callForm struct {
	grammar.CallForm
	many bool
}

// readCallForm detects the template's syntax of tool calls by rendering a call. It returns
// InvalidArgument for a syntax that a Reader does not parse.
func (t *Template) readCallForm() (form callForm, err error) {
	const arguments = `{"anneal_key": "anneal_value"}`
	c := &engines.Chat{
		Messages: []engines.Message{
			{Role: "user", Content: "anneal_question"},
			{Role: "assistant", ToolCalls: []engines.ToolCall{{ID: "anneal000", Name: probe, Arguments: arguments}}},
		},
		Tools: []json.RawMessage{
			json.RawMessage(`{"type":"function","function":{"name":"` + probe +
				`","description":"","parameters":{"type":"object","properties":{}}}}`),
		},
	}
	unsupported := domain.Errorf(domain.InvalidArgument,
		"toolChoice: required calls are not supported for this model's chat template: use auto, and request the function "+
			"in a message")
	text, err := t.render(c, nil, newSeparator(t, c))
	if err != nil {
		return form, unsupported
	}
	// Skip all text before the user message "anneal_question": it may contain the tools, and so
	// the name of the probe.
	_, turn, _ := strings.Cut(text, "anneal_question")
	before, after, found := strings.Cut(turn, `{"name": "`+probe)
	key := callKey.FindString(after)
	value := regexp.MustCompile(`^\{\s*"anneal_key"\s*:\s*"anneal_value"\s*\}`).FindString(after[len(key):])
	if !found || key == "" || value == "" {
		return form, unsupported
	}
	form.CallForm = grammar.CallForm{Before: `{"name": "`, Between: key, After: "}"}
	rest := after[len(key)+len(value):]
	open := strings.LastIndex(before, callOpen)
	switch last := strings.TrimSpace(before); {
	case open >= 0 && strings.TrimSpace(before[open+len(callOpen):]) == "":
		end := strings.Index(rest, callClose)
		if end < 0 || strings.TrimSpace(rest[:end]) != "}" {
			return form, unsupported
		}
		form.Before = before[open:] + form.Before
		form.After = rest[:end] + callClose
		form.Separator = "\n"
		form.many = true
		return form, nil
	case strings.HasSuffix(last, "["):
		form.Begin, form.End, form.Separator = "[", "]", ", "
		form.many = true
		return form, nil
	case strings.HasSuffix(last, ":"), !strings.HasPrefix(rest, "}"): // the call is a part of another JSON object
		return form, unsupported
	}
	return form, nil
}

// Strict reports whether a tool has strict set: the arguments of its calls must conform to its
// schema.
func Strict(tools []json.RawMessage) bool {
	return slices.ContainsFunc(functions(tools, ""), func(f grammar.Function) bool { return f.Strict })
}

// functions returns the functions of tools with the given name, or all functions if name is "".
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
		functions = append(functions, grammar.Function{
			Name: f.Name, Parameters: f.Parameters, Strict: f.Strict, Field: fmt.Sprintf("tools[%d].function.parameters", i),
		})
	}
	return functions
}
