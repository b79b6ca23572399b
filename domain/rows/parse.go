package rows

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

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

// A Sample is one answer in a trainer's row, and what it was given for it.
type Sample struct {
	Messages []Message
	Metrics  map[string]float64 // each 0..1
}

// A Row is one example, in one of the five shapes.
type Row struct {
	Shape      string
	Messages   []Message       // chat, prompt; the common part of preference
	Tools      json.RawMessage // chat, prompt, preference; nil when there are none
	Prompt     string          // completion
	Completion string          // completion; of a {text} row all of it
	Preferred  []Message       // preference
	Rejected   []Message       // preference
	Samples    []Sample        // samples
	Bytes      int             // of text
	Turns      int             // of users and assistants
}

// Parse reads one line. hint is the shape that the rows before had, or "". It
// answers the rules that the row breaks, at most MaxFaults of them; Shape is ""
// when none can be told. Names are exact about case; one that has a meaning may
// come once only in its object, the others are free.
func Parse(line []byte, hint string) (Row, []string) {
	r := &reader{keep: true}
	row := r.read(line, hint)
	return row, r.reasons
}

// A reader reads one row after the other. Unless it keeps what it reads, it
// counts without allocating.
type reader struct {
	keep    bool
	hear    func(text string) // told every text of a row, unless nil
	cursors [5]cursor         // one for each level: row, samples, messages, calls, function
	values  [rowFields][]byte // of the row's members
	head    conversation      // of the row, or its input
	ofRow   func()            // reads it there
	ofInput func()
	metrics []string // that the samples of the row have
	path    []byte   // to what is being read, as in messages[2]
	scratch []byte   // for text with escapes
	reasons []string // the rules that the row breaks
	row     Row
}

const (
	rowMessages = iota
	rowTools
	rowInput
	rowPreferred
	rowRejected
	rowSamples
	rowText
	rowPrompt
	rowCompletion
	rowFields
)

var rowNames = []string{"messages", "tools", "input", "preferred_output", "non_preferred_output", "samples", "text", "prompt", "completion"}

func (r *reader) read(line []byte, hint string) Row {
	r.row, r.reasons, r.path, r.head = Row{}, nil, r.path[:0], conversation{}
	if !utf8.Valid(line) {
		r.fault("", "the line is not valid UTF-8")
		return Row{}
	}
	top, v := &r.cursors[0], &r.values
	top.reset(line)
	if !top.object() {
		r.fault("", "%s", explain(line))
		return Row{}
	}
	if r.ofRow == nil {
		r.ofRow = func() { r.head = r.messages(&r.cursors[0], "messages", 1) }
		r.ofInput = func() { r.head = r.messages(&r.cursors[1], "messages", 2) }
	}
	twice := top.members(rowNames, v[:], r.ofRow)
	if !top.end() {
		r.reasons = []string{explain(line)}
		return Row{}
	}
	r.once(twice)
	completion := v[rowText] != nil || v[rowPrompt] != nil || v[rowCompletion] != nil
	switch {
	case r.head.given:
		r.conversation(hint)
	case v[rowPreferred] != nil || v[rowRejected] != nil || v[rowInput] != nil && !completion:
		r.preference()
	case v[rowSamples] != nil:
		r.samples(v[rowSamples])
	case completion:
		r.completion()
	default:
		r.fault("", "the row has none of messages, prompt and completion, text, input, samples")
	}
	return r.row
}

// conversation reads a chat row or, where the hint or the last message says
// so, a prompt, beside whose messages all fields are free.
func (r *reader) conversation(hint string) {
	last := r.head.last
	r.row.Shape, r.row.Messages = domain.ShapeChat, r.head.all
	r.row.Tools = r.tools(r.values[rowTools], 1)
	switch {
	case hint == domain.ShapePrompt || hint != domain.ShapeChat && last == "user":
		r.row.Shape = domain.ShapePrompt
		if last != "user" && last != "" {
			r.fault("messages", ": the last one must be of role user")
		}
		return
	case last != "assistant" && last != "":
		r.fault("messages", ": the last one must be of role assistant")
	}
	for _, other := range []int{rowText, rowPrompt, rowCompletion} {
		if r.values[other] != nil {
			r.fault(rowNames[other], " stands beside messages: a row has one of them; leave it out")
		}
	}
}

func (r *reader) completion() {
	v := &r.values
	r.row.Shape, r.row.Turns = domain.ShapeCompletion, 1
	if v[rowText] == nil {
		r.row.Prompt, _ = r.content("prompt", v[rowPrompt])
		text, empty := r.content("completion", v[rowCompletion])
		if r.row.Completion = text; empty {
			r.fault("completion", " must not be empty")
		}
		return
	}
	for _, other := range []int{rowPrompt, rowCompletion} {
		if v[other] != nil {
			r.fault(rowNames[other], " stands beside text: a row has prompt and completion, or text")
		}
	}
	text, empty := r.content("text", v[rowText])
	if r.row.Completion = text; empty {
		r.fault("text", " must not be empty")
	}
}

var inputNames = []string{"messages", "tools"}

func (r *reader) preference() {
	r.row.Shape = domain.ShapePreference
	switch input := r.values[rowInput]; {
	case input == nil:
		r.fault("input", " is missing; it must hold messages")
	case !isObject(input):
		r.fault("input", " must be an object that holds messages")
	default:
		var v [2][]byte
		c := &r.cursors[1]
		c.reset(input)
		mark := r.into("input", -1)
		r.once(c.members(inputNames, v[:], r.ofInput))
		if !r.head.given {
			r.fault("messages", " must not be empty")
		}
		r.row.Messages = r.head.all
		r.row.Tools = r.tools(v[1], 1)
		r.path = r.path[:mark]
	}
	r.row.Preferred = r.output("preferred_output", r.values[rowPreferred])
	r.row.Rejected = r.output("non_preferred_output", r.values[rowRejected])
}

// output reads one side of a preference: a list of one answer.
func (r *reader) output(field string, value []byte) []Message {
	if !isList(value) {
		r.fault(field, " must hold one message of role assistant")
		return nil
	}
	c := &r.cursors[1]
	c.reset(value)
	read := r.messages(c, field, 2)
	switch {
	case read.turns > 1:
		r.fault(field, " must hold one message of role assistant, not %d", read.turns)
	case read.last != "assistant" && read.last != "":
		r.fault(field, "[0].role must be assistant")
	}
	return read.all
}

// content counts a text that must be there, and answers it if texts are kept.
func (r *reader) content(field string, value []byte) (text string, empty bool) {
	if !r.text(field, value) {
		return "", false
	}
	decoded := r.decode(value)
	r.count(decoded)
	return r.kept(decoded), len(decoded) == 0
}

func (r *reader) count(text []byte) {
	r.row.Bytes += len(text)
	if r.hear != nil {
		r.hear(string(text))
	}
}

// text refuses what is no text.
func (r *reader) text(field string, value []byte) bool {
	switch {
	case value == nil:
		r.fault(field, " is missing; it must be a string")
	case !isText(value):
		r.fault(field, " must be a string")
	default:
		return true
	}
	return false
}

// decode is what a text of JSON spells; it is good until the next one.
func (r *reader) decode(value []byte) []byte {
	if bytes.IndexByte(value, '\\') < 0 {
		return value[1 : len(value)-1]
	}
	r.scratch, _ = jsontext.AppendUnquote(r.scratch[:0], value) // its error is of surrogates, which it replaces
	return r.scratch
}

func (r *reader) kept(text []byte) string {
	if !r.keep {
		return ""
	}
	return string(text)
}

// into lengthens the path by a field, or, unless index is negative, an element
// of one; r.path = r.path[:mark] takes it back.
func (r *reader) into(field string, index int) (mark int) {
	mark = len(r.path)
	r.path = appendPath(r.path, field)
	if index >= 0 {
		r.path = append(r.path, '[')
		r.path = strconv.AppendInt(r.path, int64(index), 10)
		r.path = append(r.path, ']')
	}
	return mark
}

func appendPath(path []byte, field string) []byte {
	if len(path) > 0 && field != "" {
		path = append(path, '.')
	}
	return append(path, field...)
}

func (r *reader) once(twice string) {
	if twice != "" {
		r.fault(twice, " is given twice")
	}
}

// fault notes a rule that a field of what is being read breaks.
func (r *reader) fault(field, format string, args ...any) {
	if len(r.reasons) < MaxFaults {
		where := appendPath(bytes.Clone(r.path), field)
		r.reasons = append(r.reasons, string(where)+fmt.Sprintf(format, args...))
	}
}

// explain says why a line is no JSON object.
func explain(line []byte) string {
	var any json.RawMessage
	var syntax *json.SyntaxError
	if err := json.Unmarshal(line, &any); errors.As(err, &syntax) {
		return fmt.Sprintf("not valid JSON at byte %d: %s", syntax.Offset, strings.TrimPrefix(err.Error(), "json: "))
	}
	return "must be a JSON object"
}

func clip(s string) string {
	if runes := []rune(s); len(runes) > 32 {
		return string(runes[:32]) + "…"
	}
	return s
}
