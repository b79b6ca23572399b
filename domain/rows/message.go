package rows

import (
	"encoding/json"
	"strconv"
)

// list goes into a list with the cursor of a level; nil is none.
func (r *reader) list(field string, value []byte, level int) *cursor {
	switch {
	case value == nil:
		return nil
	case !isList(value):
		r.fault(field, " must be a list")
		return nil
	}
	c := &r.cursors[level]
	c.reset(value)
	c.enter()
	return c
}

// object reads the members of the object that comes next.
func (r *reader) object(c *cursor, names []string, values [][]byte) bool {
	if !c.object() {
		c.value()
		r.fault("", " must be a JSON object")
		return false
	}
	r.once(c.members(names, values, nil))
	return true
}

// A conversation is what was read of a list of messages.
type conversation struct {
	given bool // and not null
	all   []Message
	last  string // role of the last one, "" when it has none
	turns int    // messages
}

// messages reads the list of messages that comes next, with the cursors of a
// level and below for tool calls.
func (r *reader) messages(c *cursor, field string, level int) (read conversation) {
	if c.null() {
		c.value()
		return read
	}
	read.given = true
	if !c.list() {
		c.value()
		r.fault(field, " must be a list")
		return read
	}
	for c.enter(); c.more(); read.turns++ {
		mark := r.into(field, read.turns)
		m := r.message(c, read.turns, level)
		r.path = r.path[:mark]
		read.last = m.Role
		if r.keep {
			read.all = append(read.all, m)
		}
	}
	if read.turns == 0 {
		r.fault(field, " must not be empty")
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
		r.fault("tool_calls", " belong to messages of role assistant")
	}
	if v[messageContent] != nil || !calls || m.Role != "assistant" {
		m.Content, _ = r.content("content", v[messageContent])
	}
	if id := v[messageCallID]; id != nil && r.text("tool_call_id", id) {
		m.ToolCallID = r.kept(r.decode(id))
	}
	if id := v[messageCallID]; m.Role == "tool" && (id == nil || string(id) == `""`) {
		r.fault("tool_call_id", " is missing; a tool's message answers a call")
	}
	if name := v[messageName]; name != nil && r.text("name", name) {
		m.Name = r.kept(r.decode(name))
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

// listOf copies the elements of a list.
func listOf(value []byte) (all []json.RawMessage) {
	if json.Unmarshal(value, &all) != nil {
		return nil // not a list
	}
	return all
}

// role is "" for one that is not allowed.
func (r *reader) role(value []byte, index int) string {
	if value != nil && !isText(value) {
		r.fault("role", " must be a string")
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
			r.fault("role", ": system may only come first")
		}
		return "system"
	case "":
		r.fault("role", " is missing; it must be system, user, assistant or tool")
	default:
		r.fault("role", " %q must be system, user, assistant or tool", clip(string(role)))
	}
	return ""
}

// weight reads 0 or 1, however it is written; absent is nil.
func (r *reader) weight(value []byte) *float64 {
	if value == nil {
		return nil
	}
	weight, err := strconv.ParseFloat(string(value), 64)
	switch {
	case !isNumber(value) || err != nil || weight != 0 && weight != 1:
		r.fault("weight", " must be 0 or 1")
		return nil
	case r.keep:
		kept := weight
		return &kept
	}
	return nil
}
