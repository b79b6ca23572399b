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
	Role    string `json:"role"`
	Content string `json:"content"`
	// weight in the loss: 0 excludes the message; nil stands for 1
	Weight     *float64          `json:"weight,omitempty"`
	ToolCalls  []json.RawMessage `json:"tool_calls,omitempty"`
	ToolCallID string            `json:"tool_call_id,omitempty"`
	Name       string            `json:"name,omitempty"`
}

// A Sample is a completion in a trainer's row, with its scores.
type Sample struct {
	Messages []Message
	Metrics  map[string]float64 // scores of the completion, from 0 to 1, by name of the metric
}

// A Row is one example, in one of five shapes.
type Row struct {
	Shape      string
	Messages   []Message       // in shapes chat and prompt; in shape preference, the input of both completions
	Tools      json.RawMessage // tools in shapes chat, prompt and preference; nil if the row has none
	Prompt     string          // prompt in shape completion
	Completion string          // completion in shape completion; for a row {"text": …}, all of the text
	Preferred  []Message       // preferred completion in shape preference
	Rejected   []Message       // rejected completion in shape preference
	Samples    []Sample        // samples in shape samples
	Bytes      int             // bytes of all texts in the row
	Turns      int             // number of messages of the roles user and assistant; 1 for shape completion
}

// Parse parses one line of a dataset file. hint is the shape of the previous rows, or "". Parse
// returns the row and the violated rules, at most MaxErrors. Row.Shape is "" if it cannot be
// determined. Names of members are case-sensitive. A known name must occur only once in an object.
// Unknown names are ignored; for some invalid rows, the violated rules also list them.
func Parse(line []byte, hint string) (Row, []string) {
	r := &reader{keep: true}
	row := r.read(line, hint)
	return row, r.reasons
}

// A reader parses one row after another. Unless keep is set, it only validates a row and counts its
// bytes and messages, without allocating memory.
type reader struct {
	keep    bool
	onText  func(text string) // called with every text of a row; may be nil
	cursors [5]cursor         // one cursor for each level of nesting: row, samples, messages, calls, function
	values  [rowFields][]byte // values of the row's fields, in the order of rowNames
	head    conversation      // messages of the row, or of the input of a row of shape preference
	ofRow   func()            // reads head from the row's field messages
	ofInput func()            // reads head from the row's field input
	metrics []string          // names of the metrics of the row's samples
	path    []byte            // path of the current value, such as messages[2]
	scratch []byte            // buffer for text without its escapes
	reasons []string          // violated rules of the row
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

var rowNames = []string{"messages", "tools", "input", "preferred_output", "non_preferred_output", "samples", "text",
	"prompt", "completion"}

func (r *reader) read(line []byte, hint string) Row {
	r.row, r.reasons, r.path, r.head = Row{}, nil, r.path[:0], conversation{}
	if !utf8.Valid(line) {
		r.reject("", "the line is not valid UTF-8")
		return Row{}
	}
	top, v := &r.cursors[0], &r.values
	top.reset(line)
	if !top.object() {
		r.reject("", "%s", explainInvalid(line))
		return Row{}
	}
	if r.ofRow == nil {
		r.ofRow = func() { r.head = r.messages(&r.cursors[0], "messages", 1) }
		r.ofInput = func() { r.head = r.messages(&r.cursors[1], "messages", 2) }
	}
	duplicate := top.members(rowNames, v[:], r.ofRow)
	if !top.end() {
		r.reasons = []string{explainInvalid(line)}
		return Row{}
	}
	r.rejectDuplicate(duplicate)
	isConversation := r.head.given // before r.preference overwrites head
	completion := v[rowText] != nil || v[rowPrompt] != nil || v[rowCompletion] != nil
	switch {
	case isConversation:
		r.conversation(hint)
	case v[rowPreferred] != nil || v[rowRejected] != nil || v[rowInput] != nil && !completion:
		r.preference()
	case v[rowSamples] != nil:
		r.samples(v[rowSamples])
	case completion:
		r.completion()
	default:
		r.reject("", "the row has none of the fields messages, prompt, completion, text, input and samples")
	}
	if len(r.reasons) > 0 && !isConversation && v[rowSamples] == nil {
		for _, name := range unknownFields(line) {
			r.reject("", "unknown field %s", name)
		}
	}
	return r.row
}

// maxUnknown is the maximum number of unknown fields that are named for an invalid row.
const maxUnknown = 5

// unknownFields returns the names of up to maxUnknown unknown fields of a row, quoted, because one
// of them may be a known name that is misspelt. It is not used for rows with messages, because
// evaluators receive all other fields of such rows.
func unknownFields(line []byte) (names []string) {
	var c cursor
	c.reset(line)
	for c.enter(); c.more() && len(names) < maxUnknown; {
		name := c.key()
		if indexOf(rowNames, name) < 0 {
			names = append(names, strconv.Quote(clip(string(name))))
		}
		c.value()
	}
	return names
}

// conversation reads a row with messages. The row is a prompt row if hint is prompt, or if hint is
// not chat and the last message is of role user. Otherwise it is a chat row. The fields text,
// prompt and completion are ignored in a prompt row.
func (r *reader) conversation(hint string) {
	last := r.head.last
	r.row.Shape, r.row.Messages = domain.ShapeChat, r.head.all
	r.row.Tools = r.tools(r.values[rowTools], 1)
	switch {
	case hint == domain.ShapePrompt || hint != domain.ShapeChat && last == "user":
		r.row.Shape = domain.ShapePrompt
		if last != "user" && last != "" {
			r.reject("messages", ": the last message of a prompt row must be of role user")
		}
		return
	case last != "assistant" && last != "":
		r.reject("messages", ": the last message of a chat row must be of role assistant")
	}
	for _, other := range []int{rowText, rowPrompt, rowCompletion} {
		if r.values[other] != nil {
			r.reject(rowNames[other], " cannot be combined with messages: leave one of them out")
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
			r.reject("completion", " must not be empty")
		}
		return
	}
	for _, other := range []int{rowPrompt, rowCompletion} {
		if v[other] != nil {
			r.reject(rowNames[other], " cannot be combined with text: use prompt and completion, or text")
		}
	}
	text, empty := r.content("text", v[rowText])
	if r.row.Completion = text; empty {
		r.reject("text", " must not be empty")
	}
}

var inputNames = []string{"messages", "tools"}

func (r *reader) preference() {
	r.row.Shape = domain.ShapePreference
	switch input := r.values[rowInput]; {
	case input == nil:
		r.reject("input", " is missing; it must hold messages")
	case !isObject(input):
		r.reject("input", " must be an object that holds messages")
	default:
		var v [2][]byte
		c := &r.cursors[1]
		c.reset(input)
		mark := r.pushPath("input", -1)
		r.rejectDuplicate(c.members(inputNames, v[:], r.ofInput))
		if !r.head.given {
			r.reject("messages", " must not be empty")
		}
		r.row.Messages = r.head.all
		r.row.Tools = r.tools(v[1], 1)
		r.path = r.path[:mark]
	}
	r.row.Preferred = r.output("preferred_output", r.values[rowPreferred])
	r.row.Rejected = r.output("non_preferred_output", r.values[rowRejected])
}

// output reads the preferred or the rejected completion in a row of shape preference: a list of one
// message.
func (r *reader) output(field string, value []byte) []Message {
	if !isList(value) {
		r.reject(field, " must hold one message of role assistant")
		return nil
	}
	c := &r.cursors[1]
	c.reset(value)
	read := r.messages(c, field, 2)
	switch {
	case read.turns > 1:
		r.reject(field, " must hold one message of role assistant, not %d", read.turns)
	case read.last != "assistant" && read.last != "":
		r.reject(field, "[0].role must be assistant")
	}
	return read.all
}

// content counts the bytes of a required text, in value, and returns the text if the reader keeps
// texts. It rejects a missing text. empty reports whether the text is "".
func (r *reader) content(field string, value []byte) (text string, empty bool) {
	if !r.text(field, value) {
		return "", false
	}
	decoded := r.decode(value)
	r.count(decoded)
	return r.keepText(decoded), len(decoded) == 0
}

func (r *reader) count(text []byte) {
	r.row.Bytes += len(text)
	if r.onText != nil {
		r.onText(string(text))
	}
}

// text reports whether value is a JSON string, and rejects any other value.
func (r *reader) text(field string, value []byte) bool {
	switch {
	case value == nil:
		r.reject(field, " is missing; it must be a string")
	case !isText(value):
		r.reject(field, " must be a string")
	default:
		return true
	}
	return false
}

// decode returns the JSON string in value without its quotes and escapes. The result is valid until
// the next call of decode.
func (r *reader) decode(value []byte) []byte {
	if bytes.IndexByte(value, '\\') < 0 {
		return value[1 : len(value)-1]
	}
	// An error is possible only for an unpaired surrogate, which AppendUnquote replaces.
	r.scratch, _ = jsontext.AppendUnquote(r.scratch[:0], value)
	return r.scratch
}

func (r *reader) keepText(text []byte) string {
	if !r.keep {
		return ""
	}
	return string(text)
}

// pushPath appends a field to r.path, and an index unless the index is negative. It returns the
// previous length as mark; the caller restores the path with r.path = r.path[:mark].
func (r *reader) pushPath(field string, index int) (mark int) {
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

func (r *reader) rejectDuplicate(name string) {
	if name != "" {
		r.reject(name, " is given twice")
	}
}

// reject records a violation of the row: that field, in the value at r.path, breaks the rule that
// format and args describe.
func (r *reader) reject(field, format string, args ...any) {
	if len(r.reasons) < MaxErrors {
		where := appendPath(bytes.Clone(r.path), field)
		r.reasons = append(r.reasons, string(where)+fmt.Sprintf(format, args...))
	}
}

// explainInvalid returns why line is not a JSON object, for a message.
func explainInvalid(line []byte) string {
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
