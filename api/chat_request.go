package api

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/engines"
)

// Limits of a conversation.
const (
	maxMessages = 10_000
	maxTools    = 128
	maxCalls    = 128 // of one message
	maxName     = 64
	maxToolText = 64 << 10 // bytes of a description
)

// knownChat are the fields of a chat completion request.
var knownChat = set(append([]string{"messages", "tools", "tool_choice", "parallel_tool_calls"}, sharedFields...)...)

// readChat checks a request's JSON and collects all that is wrong. data is the
// body that value was read from: tools keep the order of their keys.
func readChat(value any, data []byte, strict bool) (*inferenceRequest, error) {
	var v domain.Violations
	f, q := readFields(&v, value, knownChat)
	chat := &engines.Chat{}
	chat.Messages = f.messages()
	chat.Tools = f.tools(data)
	if f.given("parallel_tool_calls") {
		q.oneCall = !f.flag("parallel_tool_calls")
	}
	told, calls := f.calls(chat.Tools, q.oneCall)
	if !told {
		chat.Tools = nil
	}
	chat.ToolChoice = calls
	q.prompts = []prompt{{at: "messages", chat: chat}}
	f.readShared(q)
	f.require(chat.ToolChoice == nil || q.settings.Format == nil, "response_format", "cannot be held together with a tool_choice that forces a call: leave one of them out")
	q.keepOrder(data)
	return q, q.checked(v, strict, "chat completions")
}

func (f *inferenceFields) messages() []engines.Message {
	f.require(f.given("messages"), "messages", "is required: a list of messages with role and content")
	list := f.list("messages", maxMessages)
	_, isList := f.values["messages"].([]any)
	f.require(!isList || len(list) > 0, "messages", "must hold at least one message")
	known := set("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "refusal")
	var messages []engines.Message
	for i, one := range list {
		at := fmt.Sprintf("messages[%d]", i)
		object, ok := one.(map[string]any)
		if f.require(ok, at, "must be an object with role and content, not %s", wire.KindName(one)); !ok {
			continue
		}
		messages = append(messages, f.within(at, object, known).message())
	}
	return messages
}

func (f *inferenceFields) message() engines.Message {
	m := engines.Message{Role: f.choice("role", "system", "developer", "user", "assistant", "tool")}
	f.require(f.given("role"), "role", "is required: system, developer, user, assistant or tool")
	m.Content, m.Name = f.content("content"), f.text("name", maxName)
	f.text("refusal", 1<<20)
	m.Reasoning, m.ToolCallID = f.text("reasoning_content", 4<<20), f.text("tool_call_id", 256)
	for i, one := range f.list("tool_calls", maxCalls) {
		m.ToolCalls = append(m.ToolCalls, f.toolCall(fmt.Sprintf("tool_calls[%d]", i), one))
	}
	assistant := m.Role == "assistant"
	f.require(len(m.ToolCalls) == 0 || assistant, "tool_calls", "belongs to messages of the assistant only")
	f.require(f.given("content") || len(m.ToolCalls) > 0 || m.Reasoning != "", "content", "is required: text, or a list of text parts")
	f.require(m.ToolCallID == "" || m.Role == "tool", "tool_call_id", "belongs to messages of tools only")
	f.require(m.ToolCallID != "" || m.Role != "tool", "tool_call_id", "is required: the id of the call that the tool answers")
	return m
}

// content is text, or a list of parts of text, which are joined.
func (f *inferenceFields) content(name string) string {
	list, isList := f.values[name].([]any)
	if !isList {
		return f.text(name, 16<<20) // the body's limit is the one that counts
	}
	var all strings.Builder
	for i, one := range list {
		part, _ := one.(map[string]any)
		text, isText := part["text"].(string)
		f.require(isText && part["type"] == "text", fmt.Sprintf("%s[%d]", name, i), "must be {\"type\": \"text\", \"text\": …}: no model here takes anything but text")
		all.WriteString(text)
	}
	return all.String()
}

func (f *inferenceFields) toolCall(at string, value any) engines.ToolCall {
	object, ok := value.(map[string]any)
	f.require(ok, at, "must be an object with id, type and function, not %s", wire.KindName(value))
	in := f.within(at, object, set("id", "type", "function", "index"))
	call := engines.ToolCall{ID: in.text("id", 256)}
	in.choice("type", "function")
	function := in.within("function", in.object("function"), set("name", "arguments"))
	call.Name, call.Arguments = function.text("name", 256), function.text("arguments", 4<<20)
	function.require(!ok || call.Name != "", "name", "is required: the function that was called")
	return call
}

var toolName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

// tools checks the functions that the model may call, and answers them as they
// were written.
func (f *inferenceFields) tools(data []byte) []json.RawMessage {
	named := map[string]bool{}
	for i, one := range f.list("tools", maxTools) {
		at := fmt.Sprintf("tools[%d]", i)
		object, ok := one.(map[string]any)
		if f.require(ok, at, "must be an object with type and function, not %s", wire.KindName(one)); !ok {
			continue
		}
		in := f.within(at, object, set("type", "function"))
		in.require(object["type"] == "function", "type", "must be function: there are no other tools")
		function := in.within("function", in.object("function"), set("name", "description", "parameters", "strict"))
		name := function.text("name", 256)
		function.require(toolName.MatchString(name), "name", "is required, and must have 1 to 64 letters, digits, dots, underscores and hyphens")
		function.require(name == "" || !named[name], "name", "is that of another tool: give each its own")
		named[name] = true
		function.text("description", maxToolText)
		function.object("parameters")
		function.flag("strict")
	}
	var fields map[string]json.RawMessage // not a struct: that would take TOOLS, which nobody checked, for tools
	var written []json.RawMessage
	if len(named) == 0 || json.Unmarshal(data, &fields) != nil || json.Unmarshal(fields["tools"], &written) != nil {
		return nil // what is wrong was said above
	}
	return written
}
