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

// Delimiters of reasoning and of tool calls, as Hermes and Qwen write them. Llama 3 and Mistral
// write calls as JSON without delimiters.
const (
	thinkOpen, thinkClose = "<think>", "</think>"
	callOpen, callClose   = "<tool_call>", "</tool_call>"
)

// A Reader parses the stream of a completion. It separates reasoning and tool calls from the text,
// and drops the newlines around the reasoning.
type Reader struct {
	tools    []string // names of the functions that may be called; without any, calls remain text
	thinks   bool     // reasoning is separated from the text
	thinking bool
	calling  bool
	started  bool // any reasoning has ended, and the text has begun
	layout   bool // drop the next newlines, which belong to the reasoning
	allJSON  bool // the completion may consist of calls as JSON without delimiters
	pending  string
	calls    int
	// ReasoningTokens is the number of tokens of the reasoning so far.
	ReasoningTokens int
}

// NewReader returns a reader for a completion of the conversation c, which was rendered as text.
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

// Take parses a chunk, and returns the chunk with its reasoning and calls separated. It withholds
// text at the end that may be the beginning of a delimiter, until a later chunk shows whether it
// is. It withholds nothing of the last chunk, which has a finish reason.
func (r *Reader) Take(c engines.Chunk) engines.Chunk {
	if c.Echoed {
		return c
	}
	if r.thinking {
		r.ReasoningTokens += len(c.Tokens)
	}
	r.pending += c.Text
	c.Text = ""
	for r.step(&c, c.Finish != "") {
	}
	if c.Finish == engines.FinishStop && r.calls > 0 {
		c.Finish = engines.FinishToolCalls
	}
	return c
}

// step parses the next part of the pending text into c, and reports whether step must be called
// again. last reports that c is the last chunk.
func (r *Reader) step(c *engines.Chunk, last bool) bool {
	if r.layout {
		r.pending = strings.TrimLeft(r.pending, "\n")
		r.layout = r.pending == ""
	}
	switch {
	case r.thinking:
		return r.think(c, last)
	case r.calling:
		return r.call(c, last)
	case !r.started && r.start(last):
		return true
	case !r.started && !last && r.undecided():
		return false
	case r.allJSON:
		return last && r.all(c)
	}
	return r.text(c, last)
}

// undecided reports whether the pending text may be the beginning of reasoning.
func (r *Reader) undecided() bool {
	text := strings.TrimSpace(r.pending)
	return text == "" || r.thinks && strings.HasPrefix(thinkOpen, text)
}

// start decides whether the completion begins with reasoning or calls. It returns false if more
// text is needed.
func (r *Reader) start(last bool) bool {
	text := strings.TrimLeft(r.pending, " \r\n\t")
	switch {
	case r.thinks && strings.HasPrefix(text, thinkOpen):
		r.pending, r.thinking, r.layout = text[len(thinkOpen):], true, true
		return true
	case r.undecided() && !last:
		return false
	}
	r.started = true
	r.allJSON = len(r.tools) > 0 && (strings.HasPrefix(text, "{") || strings.HasPrefix(text, "["))
	return true
}

func (r *Reader) think(c *engines.Chunk, last bool) bool {
	reasoning, rest, closed := strings.Cut(r.pending, thinkClose)
	if !closed {
		reasoning, rest = splitPartial(r.pending, thinkClose, last)
	}
	c.Reasoning += reasoning
	r.pending = rest
	if closed {
		r.thinking, r.layout = false, true
	}
	return closed
}

func (r *Reader) call(c *engines.Chunk, last bool) bool {
	inside, rest, closed := strings.Cut(r.pending, callClose)
	if !closed && !last {
		return false
	}
	r.pending, r.calling = rest, false
	if calls := parseCalls(inside, nil); len(calls) > 0 {
		r.add(c, calls)
		return closed
	}
	c.Text += callOpen + inside // the text between the delimiters is no valid call
	if closed {
		c.Text += callClose
	}
	return closed
}

// all parses a completion that is either text or consists only of calls as JSON without delimiters.
// It reports whether the completion is text.
func (r *Reader) all(c *engines.Chunk) bool {
	r.allJSON = false
	if calls := parseCalls(r.pending, r.tools); len(calls) > 0 {
		r.pending = ""
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
	before, rest, found := r.pending, "", false
	if open != "" {
		before, rest, found = strings.Cut(r.pending, open)
	}
	if found {
		r.calling = true
	} else {
		before, rest = splitPartial(r.pending, open, last)
	}
	r.pending = rest
	if r.calls == 0 || strings.TrimSpace(before) != "" { // drops whitespace between calls
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

// splitPartial splits text before a suffix that may be the beginning of delimiter, and returns the
// suffix as later. If last is true, no text follows, and later is "".
func splitPartial(text, delimiter string, last bool) (now, later string) {
	for n := min(len(delimiter)-1, len(text)); n > 0 && !last; n-- {
		if strings.HasSuffix(text, delimiter[:n]) {
			return text[:len(text)-n], text[len(text)-n:]
		}
	}
	return text, ""
}

// parseCalls parses text that consists of calls as JSON objects {name, arguments} or {name,
// parameters}: one object, a list, or several objects. It returns nil for any other text, and for a
// call of a function that is not in names. A nil names allows all functions.
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
	case json.Unmarshal(arguments, &written) == nil: // a JSON object encoded as a string
	case arguments[0] == '{' && json.Compact(&compact, arguments) == nil:
		written = compact.String()
	default:
		return engines.ToolCall{}, false
	}
	return engines.ToolCall{Name: call.Name, Arguments: written}, true
}
