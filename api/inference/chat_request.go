package inference

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/engines"
)

// Limits of the fields of a chat completion request.
const (
	maxMessages = 10_000
	maxTools    = 128
	maxCalls    = 128 // maximum number of tool calls in a message
	maxName     = 64
	maxToolText = 64 << 10 // maximum size of a function's description, in bytes
)

// chatFields is the set of the fields of a chat completion request.
var chatFields = set(append([]string{"messages", "tools", "tool_choice", "parallel_tool_calls"}, sharedFields...)...)

// readChat validates a chat completion request, and returns an error with all violations. value is
// the parsed JSON of the body, and data its text, from which tools and schemas are read, so that
// their keys keep their order. If strict is true, unknown fields are violations.
func readChat(value any, data []byte, strict bool) (*generationRequest, error) {
	var v domain.Violations
	f, q := readFields(&v, value, chatFields)
	chat := &engines.Chat{}
	chat.Messages = f.messages()
	chat.Tools = f.tools(data)
	if f.given("parallel_tool_calls") {
		q.singleToolCall = !f.boolean("parallel_tool_calls")
	}
	showTools, choice := f.toolChoice(chat.Tools, q.singleToolCall)
	if !showTools {
		chat.Tools = nil
	}
	chat.ToolChoice = choice
	q.prompts = []prompt{{at: "messages", chat: chat}}
	f.readShared(q)
	f.require(chat.ToolChoice == nil || q.settings.Format == nil, "response_format",
		"cannot be combined with a tool_choice that requires a tool call: leave out one of them")
	q.keepSchemaOrder(data)
	f.require(len(q.images) <= engines.MaxImages, "messages", "must have at most %d images, not %d: send fewer",
		engines.MaxImages, len(q.images))
	q.operation, q.given = "createChatCompletion", f.values
	return q, q.checked(v, strict, "chat completions")
}

func (f *fieldReader) messages() []engines.Message {
	f.require(f.given("messages"), "messages", "is required: a list of messages, each with role and content")
	list := f.list("messages", maxMessages)
	_, isList := f.values["messages"].([]any)
	f.require(!isList || len(list) > 0, "messages", "must have at least one message")
	known := set("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "refusal")
	var messages []engines.Message
	for i, one := range list {
		at := fmt.Sprintf("messages[%d]", i)
		object, ok := one.(map[string]any)
		if f.require(ok, at, "must be an object with role and content, not %s", wire.KindName(one)); !ok {
			continue
		}
		messages = append(messages, f.nested(at, object, known).message())
	}
	return messages
}

func (f *fieldReader) message() engines.Message {
	m := engines.Message{Role: f.enum("role", "system", "developer", "user", "assistant", "tool")}
	f.require(f.given("role"), "role", "is required: system, developer, user, assistant or tool")
	readContent(f, &m)
	m.Name = f.text("name", maxName)
	f.text("refusal", 1<<20)
	m.Reasoning, m.ToolCallID = f.text("reasoning_content", 4<<20), f.text("tool_call_id", 256)
	for i, one := range f.list("tool_calls", maxCalls) {
		m.ToolCalls = append(m.ToolCalls, f.toolCall(fmt.Sprintf("tool_calls[%d]", i), one))
	}
	assistant := m.Role == "assistant"
	f.require(len(m.ToolCalls) == 0 || assistant, "tool_calls", "is allowed only in messages with the role assistant")
	f.require(f.given("content") || len(m.ToolCalls) > 0 || m.Reasoning != "", "content",
		"is required: text, or a list of text and image parts")
	f.require(m.ToolCallID == "" || m.Role == "tool", "tool_call_id", "is allowed only in messages with the role tool")
	f.require(m.ToolCallID != "" || m.Role != "tool", "tool_call_id",
		"is required: the id of the tool call whose result this message is")
	return m
}

// content returns the text of the field name, which is a text or a list of text parts. It
// concatenates the parts.
func (f *fieldReader) content(name string) string {
	list, isList := f.values[name].([]any)
	if !isList {
		return f.text(name, 16<<20) // the limit is larger than any body
	}
	var all strings.Builder
	for i, one := range list {
		part, _ := one.(map[string]any)
		text, isText := part["text"].(string)
		f.require(isText && part["type"] == "text", fmt.Sprintf("%s[%d]", name, i),
			"must be {\"type\": \"text\", \"text\": …}: no other parts are supported")
		all.WriteString(text)
	}
	return all.String()
}

func (f *fieldReader) toolCall(at string, value any) engines.ToolCall {
	object, ok := value.(map[string]any)
	f.require(ok, at, "must be an object with id, type and function, not %s", wire.KindName(value))
	in := f.nested(at, object, set("id", "type", "function", "index"))
	call := engines.ToolCall{ID: in.text("id", 256)}
	in.enum("type", "function")
	function := in.nested("function", in.object("function"), set("name", "arguments"))
	call.Name, call.Arguments = function.text("name", 256), function.text("arguments", 4<<20)
	function.require(!ok || call.Name != "", "name", "is required: the name of the function")
	return call
}

var toolName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

// tools validates the field tools, and returns the JSON text of each tool. data is the text of the
// request's body.
func (f *fieldReader) tools(data []byte) []json.RawMessage {
	named := map[string]bool{}
	for i, one := range f.list("tools", maxTools) {
		at := fmt.Sprintf("tools[%d]", i)
		object, ok := one.(map[string]any)
		if f.require(ok, at, "must be an object with type and function, not %s", wire.KindName(one)); !ok {
			continue
		}
		in := f.nested(at, object, set("type", "function"))
		in.require(object["type"] == "function", "type", "must be function: no other tools are supported")
		in.nested("function", in.object("function"), set("name", "description", "parameters", "strict")).functionTool(named)
	}
	// decoding into a struct would also accept the key TOOLS, which was not validated
	var fields map[string]json.RawMessage
	var written []json.RawMessage
	if len(named) == 0 || json.Unmarshal(data, &fields) != nil || json.Unmarshal(fields["tools"], &written) != nil {
		return nil // a violation of this field was added above
	}
	return written
}

// functionTool validates a function that the model can call, and adds its name to named, the names
// of the functions before it.
func (f *fieldReader) functionTool(named map[string]bool) {
	name := f.text("name", 256)
	f.require(toolName.MatchString(name), "name",
		"must have 1 to 64 characters: letters, digits, dots, underscores and hyphens")
	f.require(name == "" || !named[name], "name", "is also the name of another tool: give each tool another name")
	named[name] = true
	f.text("description", maxToolText)
	f.object("parameters")
	f.boolean("strict")
}
