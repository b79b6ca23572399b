// Package chat renders conversations with a model's chat template, and parses reasoning and tool
// calls in the model's output.
package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
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
	parseFailed = "the model's chat template cannot be parsed"

	templateFile = "chat_template.jinja"
	configFile   = "tokenizer_config.json"
	maxFile      = 16 << 20
	maxRendered  = 64 << 20
)

// A Template is a model's chat template in Jinja. It is safe for concurrent use.
//
// Special tokens in the template's own text are encoded as special tokens. Text of the
// conversation never becomes a special token: see mark.
type Template struct {
	source string
	tokens *tokenizer.Tokenizer
	named  map[string]any // bos_token, eos_token …

	callForm func() (callForm, error) // see readCallForm

	mu      sync.Mutex // program and state are used by one goroutine at a time
	program *exec.Template
	state   *rendering
}

// Load reads the template of a model directory: chat_template.jinja, otherwise the field
// chat_template of tokenizer_config.json, which may hold several named templates ("default",
// "tool_use"). It returns nil if the directory has no template, and a FailedPrecondition error
// if the template cannot be parsed.
func Load(dir string, tokens *tokenizer.Tokenizer) (*Template, error) {
	own, err := Source(dir)
	if err != nil {
		return nil, err
	}
	return With(own, dir, tokens)
}

// Source returns the content of chat_template.jinja in dir, "" if the file does not exist.
func Source(dir string) (string, error) {
	own, err := read(filepath.Join(dir, templateFile))
	return string(own), err
}

// Save writes source to dir as chat_template.jinja, from which Load reads it.
func Save(dir, source string) error {
	return os.WriteFile(filepath.Join(dir, templateFile), []byte(source), 0o644)
}

// With parses source as the template of the model in dir. If source is empty, With parses the
// template in dir's tokenizer_config.json, and returns nil if that file has none.
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
			return nil, domain.Errorf(domain.FailedPrecondition, "parse %s: %v", configFile, err)
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

// parse parses a template and adds the limits to it.
func parse(source string, tokens *tokenizer.Tokenizer, named map[string]any) (_ *Template, err error) {
	defer recovered(&err, parseFailed)
	const name = "/template"
	// The loader knows no other template that an include could load.
	loader, err := loaders.NewMemoryLoader(map[string]string{name: source})
	if err != nil {
		return nil, err
	}
	settings := config.New() // the settings that transformers uses
	settings.TrimBlocks, settings.LeftStripBlocks = true, true
	if err := checkSource(source, settings); err != nil {
		return nil, err
	}
	state := &rendering{}
	program, err := exec.NewTemplate(name, settings, loader, environment(state))
	if err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "%s: %s", parseFailed, short(err))
	}
	if err := instrument(program.Root(), state); err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "%s: %s", parseFailed, short(err))
	}
	t := &Template{source: source, tokens: tokens, named: named, program: program, state: state}
	t.callForm = sync.OnceValues(t.readCallForm)
	return t, nil
}

// chosen returns the template in raw, the field chat_template of a tokenizer configuration,
// which holds one template or several named templates.
func chosen(raw json.RawMessage) string {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return one
	}
	var several []struct{ Name, Template string }
	_ = json.Unmarshal(raw, &several) // a chat_template of another type is ignored
	found := ""
	for _, t := range several {
		if t.Name == "tool_use" || t.Name == "default" && found == "" {
			found = t.Template
		}
	}
	return found
}

// special returns the named special tokens of a tokenizer configuration, such as bos_token.
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

// Reasons reports whether the template supports reasoning.
func (t *Template) Reasons() bool { return engines.TemplateReasons(t.source) }

// Prompt renders a conversation up to the assistant's next turn, and returns it as tokens and as
// text. The error is InvalidArgument if the template rejects or ignores a part of it.
func (t *Template) Prompt(c *engines.Chat, r *engines.Reasoning) (tokens []int, text string, err error) {
	mark := newMark(t, c)
	rendered, err := t.render(c, r, mark)
	if err != nil {
		return nil, "", err
	}
	if err := t.checkRendered(c, rendered,
		func(other *engines.Chat) (string, error) { return t.render(other, r, mark) }); err != nil {
		return nil, "", err
	}
	return t.encode(rendered, mark), mark.remove(rendered), nil
}

// encode tokenizes rendered text.
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

// checkRendered returns an error if the template ignores the tools or the tool calls of c, because
// the model would then answer another question. The template ignores them if render returns the
// same text, rendered, for a copy of c without them.
func (t *Template) checkRendered(c *engines.Chat, rendered string, render func(*engines.Chat) (string, error)) error {
	var v domain.Violations
	if len(c.Tools) > 0 {
		without := *c
		without.Tools = nil
		other, err := render(&without)
		v.Require(err != nil || other != rendered, "tools",
			"are not supported by this model's chat template: omit them, or use a model that was trained with tools")
	}
	calls := slices.ContainsFunc(c.Messages, func(m engines.Message) bool { return len(m.ToolCalls) > 0 })
	if calls {
		without := *c
		without.Messages = slices.Clone(c.Messages)
		for i := range without.Messages {
			without.Messages[i].ToolCalls = nil
		}
		other, err := render(&without)
		v.Require(err != nil || other != rendered, "messages",
			"tool_calls are not supported by this model's chat template: describe them in the content")
	}
	return v.Err()
}

// render executes the template with add_generation_prompt set.
func (t *Template) render(c *engines.Chat, r *engines.Reasoning, mark mark) (text string, err error) {
	return t.execute(c, r, mark, true)
}

// execute executes the template. prompt is the value of the template's variable
// add_generation_prompt.
func (t *Template) execute(c *engines.Chat, r *engines.Reasoning, mark mark, prompt bool) (text string, err error) {
	defer recovered(&err, "the model's chat template failed on this conversation")
	order := keyOrder{}
	values := map[string]any{
		"messages": t.messages(c, r, mark, order), "add_generation_prompt": prompt, "tools": nil, "documents": nil,
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
	*t.state = rendering{order: order, budget: budget{until: time.Now().Add(renderWithin)}}
	if err := t.program.Execute(&out, exec.NewContext(values)); err != nil {
		return "", t.state.renderError(err)
	}
	return out.text.String(), nil
}

// messages returns the turns of c as the values that templates expect in the variable messages.
func (t *Template) messages(c *engines.Chat, r *engines.Reasoning, mark mark, order keyOrder) []any {
	turns := make([]any, len(c.Messages))
	for i, m := range c.Messages {
		role := m.Role
		if role == "developer" && !strings.Contains(t.source, role) {
			// "system" is the older name of the role "developer".
			role = "system"
		}
		if !keepsReasoning(c, r, i) {
			m.Reasoning = ""
		}
		turn := map[string]any{"role": role, "content": mark.put(m.Content)}
		for name, text := range map[string]string{
			"name": m.Name, "tool_call_id": m.ToolCallID, "reasoning_content": m.Reasoning,
		} {
			if text != "" {
				turn[name] = mark.put(text)
			}
		}
		var calls []any
		for _, call := range m.ToolCalls {
			arguments, err := order.parse(json.RawMessage(call.Arguments), mark)
			if err != nil {
				arguments = mark.put(call.Arguments) // arguments that are not JSON are passed unchanged
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

// keepsReasoning reports whether the reasoning of turn i is passed to the template. The value
// "interleaved" keeps the reasoning after the last user message.
func keepsReasoning(c *engines.Chat, r *engines.Reasoning, i int) bool {
	switch {
	case r == nil || r.History == "" || r.History == "preserved":
		return true
	case r.History == "disabled":
		return false
	}
	return !slices.ContainsFunc(c.Messages[i:], func(m engines.Message) bool { return m.Role == "user" })
}

// limited is a writer for rendered text of at most maxRendered bytes.
type limited struct{ text strings.Builder }

func (l *limited) Write(data []byte) (int, error) {
	if l.text.Len()+len(data) > maxRendered {
		return 0, fmt.Errorf("the template writes more than %d bytes", maxRendered)
	}
	return l.text.Write(data)
}

// recovered must be deferred. If gonja panicked, recovered sets err to an error whose message
// begins with what.
func recovered(err *error, what string) {
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
		return nil, domain.Errorf(domain.FailedPrecondition, "%s has more than the limit of %d bytes",
			filepath.Base(path), maxFile)
	}
	return data, nil
}
