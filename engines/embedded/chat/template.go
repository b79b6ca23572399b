// Package chat turns conversations into what a model was trained to continue,
// by the chat template that came with it, and reads tool calls and reasoning
// out of what it answers.
package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/tokenizer"
)

const (
	templateFile = "chat_template.jinja"
	configFile   = "tokenizer_config.json"
	maxFile      = 16 << 20
	maxRendered  = 64 << 20
)

// A Template renders conversations as a model's own chat template says. It is
// safe for concurrent use.
//
// What the template writes is read for special tokens; what comes from the
// conversation never becomes one: see marks.
type Template struct {
	source string
	tokens *tokenizer.Tokenizer
	named  map[string]any // bos_token, eos_token …

	callForm func() (callForm, error) // see readCallForm

	mu      sync.Mutex // a program is executed by one goroutine at a time
	program *exec.Template
	now     *rendering
}

// Load reads the template of a model's directory: chat_template.jinja, else
// chat_template of tokenizer_config.json, of which several may be named
// "default" and "tool_use". It is nil when there is none. A template that
// cannot be read is a FailedPrecondition fault.
func Load(dir string, tokens *tokenizer.Tokenizer) (*Template, error) {
	own, err := Source(dir)
	if err != nil {
		return nil, err
	}
	return With(own, dir, tokens)
}

// Source is the text of a directory's chat_template.jinja; "" is none.
func Source(dir string) (string, error) {
	own, err := read(filepath.Join(dir, templateFile))
	return string(own), err
}

// Save writes a template's text to a directory, where Load finds it.
func Save(dir, source string) error {
	return os.WriteFile(filepath.Join(dir, templateFile), []byte(source), 0o644)
}

// With is a model's template when its text is given; "" is that of the model's
// tokenizer_config.json.
func With(source, dir string, tokens *tokenizer.Tokenizer) (*Template, error) {
	data, err := read(filepath.Join(dir, configFile))
	if err != nil {
		return nil, err
	}
	var c struct {
		Template json.RawMessage `json:"chat_template"`
	}
	fields := map[string]json.RawMessage{}
	if len(data) > 0 {
		if err := errors.Join(json.Unmarshal(data, &c), json.Unmarshal(data, &fields)); err != nil {
			return nil, domain.Errorf(domain.FailedPrecondition, "%s is not a tokenizer's configuration: %v", configFile, err)
		}
	}
	if source == "" {
		source = chosen(c.Template)
	}
	if source == "" {
		return nil, nil
	}
	return parse(source, tokens, special(fields))
}

// parse makes a template of its source.
func parse(source string, tokens *tokenizer.Tokenizer, named map[string]any) (_ *Template, err error) {
	defer broken(&err, "the model's chat template cannot be read")
	const name = "/template"
	loader, err := loaders.NewMemoryLoader(map[string]string{name: source}) // it can include no other
	if err != nil {
		return nil, err
	}
	settings := config.New() // as transformers sets Jinja up
	settings.TrimBlocks, settings.LeftStripBlocks = true, true
	if err := checkSource(source, settings); err != nil {
		return nil, err
	}
	now := &rendering{}
	program, err := exec.NewTemplate(name, settings, loader, environment(now))
	if err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "the model's chat template cannot be read: %s", short(err))
	}
	rebuild{now, map[uintptr]bool{}}.all(reflect.ValueOf(program.Root()))
	t := &Template{source: source, tokens: tokens, named: named, program: program, now: now}
	t.callForm = sync.OnceValues(t.readCallForm)
	return t, nil
}

// chosen is the template of a configuration: itself, or one of those named.
func chosen(raw json.RawMessage) string {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return one
	}
	var several []struct{ Name, Template string }
	_ = json.Unmarshal(raw, &several) // neither form is no template
	found := ""
	for _, t := range several {
		if t.Name == "tool_use" || t.Name == "default" && found == "" {
			found = t.Template
		}
	}
	return found
}

// special are the named tokens of a configuration, which templates may show.
func special(fields map[string]json.RawMessage) map[string]any {
	named := map[string]any{}
	for name, raw := range fields {
		var text string
		var object struct{ Content string }
		if !strings.HasSuffix(name, "_token") || string(raw) == "null" {
			continue
		}
		if json.Unmarshal(raw, &text) != nil && json.Unmarshal(raw, &object) == nil {
			text = object.Content
		}
		if text != "" {
			named[name] = text
		}
	}
	return named
}

// Reasons tells whether the model thinks before it answers: its template says
// how.
func (t *Template) Reasons() bool {
	return slices.ContainsFunc([]string{"<think>", "enable_thinking", "reasoning_effort", "thinking"}, func(word string) bool {
		return strings.Contains(t.source, word)
	})
}

// Prompt is a conversation as the tokens that the assistant's next turn
// follows, and as text with special tokens spelt. The fault is InvalidArgument
// for what the template refuses or has no place for.
func (t *Template) Prompt(c *engines.Chat, r *engines.Reasoning) (tokens []int, text string, err error) {
	mark := newMark(t, c)
	rendered, err := t.render(c, r, mark)
	if err != nil {
		return nil, "", err
	}
	if err := t.shows(c, rendered, func(other *engines.Chat) (string, error) { return t.render(other, r, mark) }); err != nil {
		return nil, "", err
	}
	return t.encode(rendered, mark), mark.remove(rendered), nil
}

// encode turns what was rendered into tokens.
func (t *Template) encode(rendered string, mark mark) (tokens []int) {
	for plain, id := range t.tokens.Split(rendered) {
		if id >= 0 {
			tokens = append(tokens, id)
			continue
		}
		tokens = append(tokens, t.tokens.Encode(mark.remove(plain))...)
	}
	return tokens
}

// shows is nil when the template shows all that the conversation has beside
// its turns' texts, as the text that it was rendered to says. One that passes
// over tools would have the model answer another question.
func (t *Template) shows(c *engines.Chat, rendered string, render func(*engines.Chat) (string, error)) error {
	var v domain.Violations
	if len(c.Tools) > 0 {
		without := *c
		without.Tools = nil
		other, err := render(&without)
		v.Require(err != nil || other != rendered, "tools", "this model's chat template has no place for tools: leave them out, or use a model that was trained with tools")
	}
	calls := slices.ContainsFunc(c.Messages, func(m engines.Message) bool { return len(m.ToolCalls) > 0 })
	if calls {
		without := *c
		without.Messages = slices.Clone(c.Messages)
		for i := range without.Messages {
			without.Messages[i].ToolCalls = nil
		}
		other, err := render(&without)
		v.Require(err != nil || other != rendered, "messages", "this model's chat template has no place for tool_calls: tell of them in the content")
	}
	return v.Err()
}

// render executes the template, up to where the assistant begins.
func (t *Template) render(c *engines.Chat, r *engines.Reasoning, mark mark) (text string, err error) {
	return t.execute(c, r, mark, true)
}

// execute executes the template. With more it goes on to where the assistant's
// next turn begins.
func (t *Template) execute(c *engines.Chat, r *engines.Reasoning, mark mark, more bool) (text string, err error) {
	defer broken(&err, "the model's chat template breaks down on this conversation")
	order := keyOrder{}
	values := map[string]any{
		"messages": t.messages(c, r, mark, order), "add_generation_prompt": more, "tools": nil, "documents": nil,
	}
	for name, token := range t.named {
		values[name] = token
	}
	if len(c.Tools) > 0 {
		var tools []any
		for i, raw := range c.Tools {
			tool, err := order.parse(raw, mark)
			if err != nil {
				return "", domain.Errorf(domain.InvalidArgument, "tools[%d]: is not JSON: %v", i, err)
			}
			tools = append(tools, tool)
		}
		values["tools"] = tools
	}
	if r != nil && r.Effort != "" {
		on := r.Effort != "none"
		values["enable_thinking"], values["thinking"], values["reasoning_effort"] = on, on, r.Effort
	}
	var out limited
	t.mu.Lock()
	defer t.mu.Unlock()
	*t.now = rendering{order: order, budget: budget{until: time.Now().Add(renderWithin)}}
	if err := t.program.Execute(&out, exec.NewContext(values)); err != nil {
		return "", t.now.refusal(err)
	}
	return out.text.String(), nil
}

// messages are the turns as templates know them.
func (t *Template) messages(c *engines.Chat, r *engines.Reasoning, mark mark, order keyOrder) []any {
	turns := make([]any, len(c.Messages))
	for i, m := range c.Messages {
		role := m.Role
		if role == "developer" && !strings.Contains(t.source, role) {
			role = "system" // what it was called before
		}
		if !remembered(c, r, i) {
			m.Reasoning = ""
		}
		turn := map[string]any{"role": role, "content": mark.put(m.Content)}
		for name, text := range map[string]string{"name": m.Name, "tool_call_id": m.ToolCallID, "reasoning_content": m.Reasoning} {
			if text != "" {
				turn[name] = mark.put(text)
			}
		}
		var calls []any
		for _, call := range m.ToolCalls {
			arguments, err := order.parse(json.RawMessage(call.Arguments), mark)
			if err != nil {
				arguments = mark.put(call.Arguments) // as the model wrote it
			}
			function := order.object([]string{"name", "arguments"}, mark.put(call.Name), arguments)
			calls = append(calls, order.object([]string{"id", "type", "function"}, mark.put(call.ID), "function", function))
		}
		if len(calls) > 0 {
			turn["tool_calls"] = calls
		}
		order.sort(turn, "role", "content", "name", "reasoning_content", "tool_calls", "tool_call_id")
		turns[i] = turn
	}
	return turns
}

// remembered tells whether the i-th turn's reasoning is handed to the template:
// interleaved is since the user spoke last. What the template shows of it is
// its own affair.
func remembered(c *engines.Chat, r *engines.Reasoning, i int) bool {
	switch {
	case r == nil || r.History == "" || r.History == "preserved":
		return true
	case r.History == "disabled":
		return false
	}
	return !slices.ContainsFunc(c.Messages[i:], func(m engines.Message) bool { return m.Role == "user" })
}

// limited is the text of a template, within its bound.
type limited struct{ text strings.Builder }

func (l *limited) Write(data []byte) (int, error) {
	if l.text.Len()+len(data) > maxRendered {
		return 0, fmt.Errorf("it writes more than %d bytes", maxRendered)
	}
	return l.text.Write(data)
}

// broken turns a panic of the template's interpreter into a fault.
func broken(err *error, what string) {
	if cause := recover(); cause != nil {
		*err = domain.Errorf(domain.FailedPrecondition, "%s: %s", what, short(fmt.Errorf("%v", cause)))
	}
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	if len(data) > maxFile {
		return nil, domain.Errorf(domain.FailedPrecondition, "%s is larger than %d bytes", filepath.Base(path), maxFile)
	}
	return data, nil
}
