package rows

import (
	"encoding/json"
	"strconv"
)

// list returns the reader's cursor for a level of nesting, at the first element of the list in
// value. It returns nil if value is absent. If value is not a list, it records a violation of field
// and returns nil.
func (r *reader) list(field string, value []byte, level int) *cursor {
	switch {
	case value == nil:
		return nil
	case !isList(value):
		r.reject(field, " must be a list")
		return nil
	}
	c := &r.cursors[level]
	c.reset(value)
	c.enter()
	return c
}

// object reads the object at the cursor and stores its members in values, as cursor.members does.
// If the value is not an object, object rejects the row and returns false.
func (r *reader) object(c *cursor, names []string, values [][]byte) bool {
	if !c.object() {
		c.value()
		r.reject("", " must be a JSON object")
		return false
	}
	r.rejectDuplicate(c.members(names, values, nil))
	return true
}

// A conversation is the result of reading a list of messages.
type conversation struct {
	given bool      // the row has the list of messages, and it is not null
	all   []Message // the messages, if the reader keeps them
	last  string    // role of the last message; "" if the message has no role
	turns int       // number of messages
}

// messages reads the list of messages at the cursor c, which is the value of field. level is the
// level of nesting of the messages' tool calls.
func (r *reader) messages(c *cursor, field string, level int) (read conversation) {
	if c.null() {
		c.value()
		return read
	}
	read.given = true
	if !c.list() {
		c.value()
		r.reject(field, " must be a list")
		return read
	}
	for c.enter(); c.more(); read.turns++ {
		mark := r.pushPath(field, read.turns)
		m := r.message(c, read.turns, level)
		r.path = r.path[:mark]
		read.last = m.Role
		if r.keep {
			read.all = append(read.all, m)
		}
	}
	if read.turns == 0 {
		r.reject(field, " must not be empty")
	}
	return read
}

const (
	messageRole = iota
	messageContent
	messageWeight
	messageCalls
	messageCallID
	messageName
	messageFields
)

var messageNames = []string{"role", "content", "weight", "tool_calls", "tool_call_id", "name"}

func (r *reader) message(c *cursor, index, level int) (m Message) {
	var v [messageFields][]byte
	if !r.object(c, messageNames, v[:]) {
		return m
	}
	m.Role = r.role(v[messageRole], index)
	calls := r.calls(v[messageCalls], level)
	if calls && m.Role != "assistant" && m.Role != "" {
		r.reject("tool_calls", " are allowed only in messages of role assistant")
	}
	if v[messageContent] != nil || !calls || m.Role != "assistant" {
		m.Content, _ = r.content("content", v[messageContent])
	}
	if id := v[messageCallID]; id != nil && r.text("tool_call_id", id) {
		m.ToolCallID = r.keepText(r.decode(id))
	}
	if id := v[messageCallID]; m.Role == "tool" && (id == nil || string(id) == `""`) {
		r.reject("tool_call_id", " is missing: a message of role tool must have the ID of the tool call that it answers")
	}
	if name := v[messageName]; name != nil && r.text("name", name) {
		m.Name = r.keepText(r.decode(name))
	}
	m.Weight = r.weight(v[messageWeight])
	if m.Role == "user" || m.Role == "assistant" {
		r.row.Turns++
	}
	if r.keep && calls {
		m.ToolCalls = listOf(v[messageCalls])
	}
	return m
}

// listOf returns copies of the elements of the JSON list in value; nil when value is not a list.
func listOf(value []byte) (all []json.RawMessage) {
	if json.Unmarshal(value, &all) != nil {
		return nil // value is not a list
	}
	return all
}

// role returns the role, in value, of the message with this index in its list. It rejects a missing
// or unknown role and returns "" for it. It also rejects the role system after the first message.
func (r *reader) role(value []byte, index int) string {
	if value != nil && !isText(value) {
		r.reject("role", " must be a string")
		return ""
	}
	var role []byte
	if value != nil {
		role = r.decode(value)
	}
	switch string(role) {
	case "user":
		return "user"
	case "assistant":
		return "assistant"
	case "tool":
		return "tool"
	case "system":
		if index > 0 {
			r.reject("role", ": only the first message may have the role system")
		}
		return "system"
	case "":
		r.reject("role", " is missing; it must be system, user, assistant or tool")
	default:
		r.reject("role", " %q must be system, user, assistant or tool", clip(string(role)))
	}
	return ""
}

// weight returns the weight of a message, in value; nil if value is absent or invalid, or if the
// reader does not keep values. It rejects a weight other than the number 0 or 1, in any notation,
// such as 1.0.
func (r *reader) weight(value []byte) *float64 {
	if value == nil {
		return nil
	}
	weight, err := strconv.ParseFloat(string(value), 64)
	switch {
	case !isNumber(value) || err != nil || weight != 0 && weight != 1:
		r.reject("weight", " must be 0 or 1")
		return nil
	case r.keep:
		kept := weight
		return &kept
	}
	return nil
}
