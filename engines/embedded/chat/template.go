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

// A Template is a model's chat template, in Jinja. It is safe for concurrent use.
//
// Special tokens in the template's own text become special tokens. Text of the conversation never
// does, see separator.
type Template struct {
	source string
	tokens *tokenizer.Tokenizer
	named  map[string]any // the tokenizer's special tokens by name, such as bos_token

	callForm func() (callForm, error) // caches the result of readCallForm

	mu      sync.Mutex // guards program and state, which only one goroutine may use at a time
	program *exec.Template
	state   *rendering
}

// Load reads the chat template of the model in dir: chat_template.jinja, or else the field
// chat_template of tokenizer_config.json, which may have several named templates ("default",
// "tool_use"). It returns nil if there is no template, and FailedPrecondition if the template
// cannot be parsed.
func Load(dir string, tokens *tokenizer.Tokenizer) (*Template, error) {
	own, err := Source(dir)
	if err != nil {
		return nil, err
	}
	return With(own, dir, tokens)
}

// Source returns the content of chat_template.jinja in dir; "" if the file does not exist.
func Source(dir string) (string, error) {
	own, err := read(filepath.Join(dir, templateFile))
	return string(own), err
}

// Save writes source to chat_template.jinja in dir, from which Load reads it.
func Save(dir, source string) error {
	return os.WriteFile(filepath.Join(dir, templateFile), []byte(source), 0o644)
}

// With parses source as the chat template of the model in dir. If source is "", it parses the
// template in tokenizer_config.json instead, and returns nil if there is none.
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

// parse parses the source of a template and adds the limits of a rendering.
func parse(source string, tokens *tokenizer.Tokenizer, named map[string]any) (_ *Template, err error) {
	defer recovered(&err, parseFailed)
	const name = "/template"
	// the loader has only this template, so that an include cannot load another one
	loader, err := loaders.NewMemoryLoader(map[string]string{name: source})
	if err != nil {
		return nil, err
	}
	settings := config.New() // the settings with which transformers renders templates
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

// chosen returns the template in raw, the field chat_template of a tokenizer configuration. If the
// field has several named templates, chosen returns "tool_use", or else "default".
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

// special returns the special tokens in a tokenizer configuration by name, such as bos_token.
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

// Prompt renders a conversation as the prompt of the assistant's next turn, and returns it as
// tokens and as text. It returns InvalidArgument if the template rejects the conversation or
// ignores a part of it.
func (t *Template) Prompt(c *engines.Chat, r *engines.Reasoning) (tokens []int, text string, err error) {
	sep := newSeparator(t, c)
	rendered, err := t.render(c, r, sep)
	if err != nil {
		return nil, "", err
	}
	if err := t.checkRendered(c, rendered,
		func(other *engines.Chat) (string, error) { return t.render(other, r, sep) }); err != nil {
		return nil, "", err
	}
	return t.encode(rendered, sep), sep.remove(rendered), nil
}

// encode tokenizes rendered text, in which sep separates special tokens of the conversation.
func (t *Template) encode(rendered string, sep separator) (tokens []int) {
	for plain, id := range t.tokens.Split(rendered) {
		if id >= 0 {
			tokens = append(tokens, id)
			continue
		}
		tokens = append(tokens, t.tokens.Encode(sep.remove(plain))...)
	}
	return tokens
}

// checkRendered returns an error if the template ignores the tools or the tool calls of c, because
// the model would then not see them. It calls render for a copy of c without them: if the result
// equals rendered, the template ignores them.
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

// render executes the template for the assistant's next turn (add_generation_prompt is true).
func (t *Template) render(c *engines.Chat, r *engines.Reasoning, sep separator) (text string, err error) {
	return t.execute(c, r, sep, true)
}

// execute executes the template. prompt is the value of its variable add_generation_prompt.
func (t *Template) execute(c *engines.Chat, r *engines.Reasoning, sep separator, prompt bool) (text string, err error) {
	defer recovered(&err, "the model's chat template failed on this conversation")
	order := keyOrder{}
	values := map[string]any{
		"messages": t.messages(c, r, sep, order), "add_generation_prompt": prompt, "tools": nil, "documents": nil,
	}
	for name, token := range t.named {
		values[name] = token
	}
	if len(c.Tools) > 0 {
		var tools []any
		for i, raw := range c.Tools {
			tool, err := order.parse(raw, sep)
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

// messages returns the messages of c as templates expect them in their variable messages.
func (t *Template) messages(c *engines.Chat, r *engines.Reasoning, sep separator, order keyOrder) []any {
	turns := make([]any, len(c.Messages))
	for i, m := range c.Messages {
		role := m.Role
		if role == "developer" && !strings.Contains(t.source, role) {
			// the template knows the role "developer" only by its older name "system"
			role = "system"
		}
		if !keepsReasoning(c, r, i) {
			m.Reasoning = ""
		}
		turn := map[string]any{"role": role, "content": sep.insert(m.Content)}
		for name, text := range map[string]string{
			"name": m.Name, "tool_call_id": m.ToolCallID, "reasoning_content": m.Reasoning,
		} {
			if text != "" {
				turn[name] = sep.insert(text)
			}
		}
		var calls []any
		for _, call := range m.ToolCalls {
			arguments, err := order.parse(json.RawMessage(call.Arguments), sep)
			if err != nil {
				arguments = sep.insert(call.Arguments) // arguments that are not JSON are passed as they are
			}
			function := order.object([]string{"name", "arguments"}, sep.insert(call.Name), arguments)
			calls = append(calls, order.object([]string{"id", "type", "function"}, sep.insert(call.ID), "function",
				function))
		}
		if len(calls) > 0 {
			turn["tool_calls"] = calls
		}
		order.sort(turn, "role", "content", "name", "reasoning_content", "tool_calls", "tool_call_id")
		turns[i] = turn
	}
	return turns
}

// keepsReasoning reports whether the template gets the reasoning of turn i. With "interleaved", it
// gets the reasoning after the last user message.
func keepsReasoning(c *engines.Chat, r *engines.Reasoning, i int) bool {
	switch {
	case r == nil || r.History == "" || r.History == "preserved":
		return true
	case r.History == "disabled":
		return false
	}
	return !slices.ContainsFunc(c.Messages[i:], func(m engines.Message) bool { return m.Role == "user" })
}

// limited is a writer for rendered text. It returns an error after maxRendered bytes.
type limited struct{ text strings.Builder }

func (l *limited) Write(data []byte) (int, error) {
	if l.text.Len()+len(data) > maxRendered {
		return 0, fmt.Errorf("the template writes more than %d bytes", maxRendered)
	}
	return l.text.Write(data)
}

// recovered converts a panic of gonja to an error, which it stores in err. Callers defer it. The
// message of the error begins with what.
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
