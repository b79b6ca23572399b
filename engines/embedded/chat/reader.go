package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	"anneal/engines"
)

// How models write what is no text: reasoning between the first two, each call
// between the others (Hermes, Qwen), or calls alone as JSON (Llama 3, Mistral).
const (
	thinkOpen, thinkClose = "<think>", "</think>"
	callOpen, callClose   = "<tool_call>", "</tool_call>"
)

// A Reader takes reasoning and tool calls out of an answer as it comes. What
// turns out to be neither stays text, unchanged.
type Reader struct {
	tools    []string // names that may be called; none looks for no calls
	thinks   bool     // reasoning is looked for
	thinking bool
	calling  bool
	begun    bool // something was said that is no reasoning
	layout   bool // lines before and after reasoning are left out
	whole    bool // all of it may be calls as JSON
	held     string
	calls    int
	// ReasoningTokens counts those of the pieces that were reasoning.
	ReasoningTokens int
}

// NewReader makes a reader of the answer to a conversation that was rendered as
// text.
func (t *Template) NewReader(c *engines.Chat, text string) *Reader {
	r := &Reader{thinks: t.Thinks()}
	r.thinking = r.thinks && strings.HasSuffix(strings.TrimSpace(text), thinkOpen)
	for _, raw := range c.Tools {
		var tool struct{ Function struct{ Name string } }
		if json.Unmarshal(raw, &tool) == nil {
			r.tools = append(r.tools, tool.Function.Name)
		}
	}
	return r
}

// Take reads one piece. What may be the beginning of something waits for the
// next, at the latest for the last.
func (r *Reader) Take(c engines.Chunk) engines.Chunk {
	if c.Echoed {
		return c
	}
	if r.thinking {
		r.ReasoningTokens += len(c.Tokens)
	}
	r.held += c.Text
	c.Text = ""
	for r.step(&c, c.Finish != "") {
	}
	if c.Finish == engines.FinishStop && r.calls > 0 {
		c.Finish = engines.FinishToolCalls
	}
	return c
}

// step takes one thing out of what is held, and tells whether to go on.
func (r *Reader) step(c *engines.Chunk, last bool) bool {
	if r.layout {
		r.held = strings.TrimLeft(r.held, "\n")
		r.layout = r.held == ""
	}
	switch {
	case r.thinking:
		return r.think(c, last)
	case r.calling:
		return r.call(c, last)
	case !r.begun && r.start(last):
		return true
	case !r.begun && !last && r.undecided():
		return false
	case r.whole:
		return last && r.all(c)
	}
	return r.text(c, last)
}

// undecided tells whether what is held may still begin with something special.
func (r *Reader) undecided() bool {
	text := strings.TrimSpace(r.held)
	return text == "" || r.thinks && strings.HasPrefix(thinkOpen, text)
}

// start looks at how the answer begins.
func (r *Reader) start(last bool) bool {
	text := strings.TrimLeft(r.held, " \r\n\t")
	switch {
	case r.thinks && strings.HasPrefix(text, thinkOpen):
		r.held, r.thinking, r.layout = text[len(thinkOpen):], true, true
		return true
	case r.undecided() && !last:
		return false
	}
	r.begun = true
	r.whole = len(r.tools) > 0 && (strings.HasPrefix(text, "{") || strings.HasPrefix(text, "["))
	return true
}

func (r *Reader) think(c *engines.Chunk, last bool) bool {
	reasoning, rest, closed := strings.Cut(r.held, thinkClose)
	if !closed {
		reasoning, rest = apart(r.held, thinkClose, last)
	}
	c.Reasoning += reasoning
	r.held = rest
	if closed {
		r.thinking, r.layout = false, true
	}
	return closed
}

func (r *Reader) call(c *engines.Chunk, last bool) bool {
	inside, rest, closed := strings.Cut(r.held, callClose)
	if !closed && !last {
		return false
	}
	r.held, r.calling = rest, false
	if calls := parseCalls(inside, nil); len(calls) > 0 {
		r.add(c, calls)
		return closed
	}
	c.Text += callOpen + inside // it only looked like a call
	if closed {
		c.Text += callClose
	}
	return closed
}

// all reads an answer that is nothing but calls, or else text.
func (r *Reader) all(c *engines.Chunk) bool {
	r.whole = false
	if calls := parseCalls(r.held, r.tools); len(calls) > 0 {
		r.held = ""
		r.add(c, calls)
		return false
	}
	return true
}

func (r *Reader) text(c *engines.Chunk, last bool) bool {
	open := callOpen
	if len(r.tools) == 0 {
		open = ""
	}
	before, rest, found := r.held, "", false
	if open != "" {
		before, rest, found = strings.Cut(r.held, open)
	}
	if found {
		r.calling = true
	} else {
		before, rest = apart(r.held, open, last)
	}
	r.held = rest
	if r.calls == 0 || strings.TrimSpace(before) != "" { // what stands between calls is layout
		c.Text += before
	}
	return found
}

func (r *Reader) add(c *engines.Chunk, calls []engines.ToolCall) {
	for _, call := range calls {
		call.Index = r.calls
		r.calls++
		c.ToolCalls = append(c.ToolCalls, call)
	}
}

// apart cuts text before what may be the beginning of mark; the last piece
// waits for nothing.
func apart(text, mark string, last bool) (now, later string) {
	for n := min(len(mark)-1, len(text)); n > 0 && !last; n-- {
		if strings.HasSuffix(text, mark[:n]) {
			return text[:len(text)-n], text[len(text)-n:]
		}
	}
	return text, ""
}

// parseCalls reads calls written as JSON objects {name, arguments} or {name,
// parameters}: one, a list, or several in a row. It is nil when the text is
// anything else, or names a function that is not among names, unless that is
// nil.
func parseCalls(text string, names []string) []engines.ToolCall {
	var calls []engines.ToolCall
	dec := json.NewDecoder(strings.NewReader(strings.ReplaceAll(text, "};", "} ")))
	for {
		var value json.RawMessage
		if err := dec.Decode(&value); errors.Is(err, io.EOF) {
			return calls
		} else if err != nil {
			return nil
		}
		several := []json.RawMessage{value}
		if value[0] == '[' && json.Unmarshal(value, &several) != nil {
			return nil
		}
		for _, one := range several {
			call, ok := parseCall(one)
			if !ok || names != nil && !slices.Contains(names, call.Name) {
				return nil
			}
			calls = append(calls, call)
		}
	}
}

func parseCall(value json.RawMessage) (engines.ToolCall, bool) {
	var call struct {
		Name                  string
		Arguments, Parameters json.RawMessage
	}
	if json.Unmarshal(value, &call) != nil || call.Name == "" {
		return engines.ToolCall{}, false
	}
	arguments := call.Arguments
	if arguments == nil {
		arguments = call.Parameters
	}
	var written string
	var compact bytes.Buffer
	switch {
	case arguments == nil || string(arguments) == "null":
		written = "{}"
	case json.Unmarshal(arguments, &written) == nil: // JSON in a string
	case arguments[0] == '{' && json.Compact(&compact, arguments) == nil:
		written = compact.String()
	default:
		return engines.ToolCall{}, false
	}
	return engines.ToolCall{Name: call.Name, Arguments: written}, true
}
