package inference

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/engines"
)

// maxResponseLogprobs is the maximum value of top_logprobs in the Responses API.
const maxResponseLogprobs = 20

// responseFields is the set of the fields of a request to the Responses API.
var responseFields = set("model", "input", "instructions", "max_output_tokens", "temperature", "top_p", "top_logprobs",
	"stream", "stream_options", "tools", "tool_choice", "parallel_tool_calls", "max_tool_calls", "text", "reasoning",
	"include", "truncation", "store", "background", "previous_response_id", "conversation", "prompt", "prompt_cache_key",
	"safety_identifier", "service_tier", "user", "metadata")

// stateful lists the fields that need stored responses, which the server does not have, and what a
// client can do instead.
var stateful = []struct{ name, instead string }{
	{"previous_response_id", "send the earlier items in input"},
	{"conversation", "send the items of the conversation in input"},
	{"prompt", "send its text as instructions and input"},
}

// includable is the set of the values of include. Only includeLogprobs has an effect: see
// inert.Table.
var includable = set(includeLogprobs, "reasoning.encrypted_content", "file_search_call.results",
	"web_search_call.results", "web_search_call.action.sources", "message.input_image.image_url",
	"computer_call_output.output.image_url", "code_interpreter_call.outputs")

const includeLogprobs = "message.output_text.logprobs"

// responseSettings has the fields of a request that its response repeats.
type responseSettings struct {
	instructions, cacheKey, safety, user, effort *string
	maxTokens                                    *int
	format, toolChoice                           any
	tools                                        []any
	metadata                                     map[string]any
}

// A responseReader reads and validates the fields of a request to the Responses API.
type responseReader struct{ *fieldReader }

// nested returns a reader of the object at path: see fieldReader.nested.
func (f responseReader) nested(path string, object map[string]any, known map[string]bool) responseReader {
	return responseReader{f.fieldReader.nested(path, object, known)}
}

// readResponse validates a request to the Responses API, and returns an error with all violations.
// value is the parsed JSON of the body, and data its text, from which tools and schemas are read,
// so that their keys keep their order. If strict is true, unknown fields are violations.
func readResponse(value any, data []byte, strict bool) (*generationRequest, error) {
	var v domain.Violations
	fields, q := readFields(&v, value, responseFields)
	f := responseReader{fields}
	f.rejectStateful()
	chat, s := &engines.Chat{}, &responseSettings{tools: []any{}, metadata: map[string]any{}}
	q.n, q.response, q.prompts = 1, s, []prompt{{at: "input", chat: chat}}
	q.operation, q.given = "createResponse", f.values
	if text := f.text("instructions", maxResponseText); f.given("instructions") {
		chat.Messages, s.instructions = append(chat.Messages, engines.Message{Role: "system", Content: text}), &text
	}
	chat.Messages = append(chat.Messages, f.items()...)
	chat.Tools = f.responseTools(data, s)
	if f.given("parallel_tool_calls") {
		q.singleToolCall = !f.boolean("parallel_tool_calls")
	}
	showTools, choice := f.responseToolChoice(chat.Tools, q.singleToolCall)
	if !showTools {
		chat.Tools = nil
	}
	if s.toolChoice = "auto"; f.given("tool_choice") {
		s.toolChoice = f.values["tool_choice"]
	}
	chat.ToolChoice = choice
	f.readResponseSettings(q, data)
	f.require(len(q.images) <= engines.MaxImages, "input", "must have at most %d images, not %d: send fewer",
		engines.MaxImages, len(q.images))
	f.require(choice == nil || q.settings.Format == nil, "text",
		"cannot have a format together with a tool_choice that requires a function call: leave out one of them")
	return q, q.checked(v, strict, "responses")
}

// rejectStateful adds a violation for each field that would need stored responses.
func (f responseReader) rejectStateful() {
	f.require(!f.boolean("store"), "store", "must be false, because responses are not stored: leave it out, or send false")
	f.require(!f.boolean("background"), "background",
		"must be false, because responses are not stored and cannot be retrieved later: leave it out, or use stream")
	for _, field := range stateful {
		f.require(!f.given(field.name), field.name, "is not supported, because responses are not stored: %s", field.instead)
	}
}

// readResponseSettings reads all fields except model, input, instructions and the fields about
// tools into q.
func (f responseReader) readResponseSettings(q *generationRequest, data []byte) {
	s := q.response
	text := func(name string, maxBytes int) *string {
		if value := f.text(name, maxBytes); f.given(name) {
			return &value
		}
		return nil
	}
	s.cacheKey, s.safety, s.user = text("prompt_cache_key", maxIsolationKey), text("safety_identifier", maxUserSize),
		text("user", maxUserSize)
	for _, one := range []*string{s.user, s.safety} {
		if one != nil {
			q.user = *one
		}
	}
	if s.cacheKey != nil {
		q.isolation = *s.cacheKey
	}
	if q.settings.MaxTokens = DefaultMaxTokens; f.given("max_output_tokens") {
		q.settings.MaxTokens = int(f.integer("max_output_tokens", 1, maxOutputTokens, DefaultMaxTokens))
		s.maxTokens = &q.settings.MaxTokens
	}
	q.stream = f.boolean("stream")
	options := f.nested("stream_options", f.object("stream_options"), set("include_obfuscation"))
	options.boolean("include_obfuscation")
	f.readSampling(&q.settings)
	q.settings.TopLogprobs = int(f.integer("top_logprobs", 0, maxResponseLogprobs, 0))
	q.settings.Logprobs = q.settings.TopLogprobs > 0
	f.readInclude(q)
	f.readTextFormat(q, data)
	f.readEffort(q)
	if f.values["truncation"] == "auto" {
		f.add("truncation", "must be disabled, because the server does not truncate the input: leave it out, and shorten "+
			"the input")
	} else {
		f.enum("truncation", "disabled")
	}
	f.text("service_tier", 64)
	f.integer("max_tool_calls", 1, maxOutputTokens, 0)
	if metadata := readMetadata(f.fieldReader); metadata != nil {
		s.metadata, q.metadata = metadata, metadata
	}
}

func (f responseReader) readInclude(q *generationRequest) {
	for i, one := range f.list("include", len(includable)) {
		name, isText := one.(string)
		shown := wire.KindName(one)
		if isText {
			shown = wire.Quote(name)
		}
		f.require(includable[name], fmt.Sprintf("include[%d]", i), "must be one of %s, not %s%s",
			strings.Join(wire.SortedKeys(includable), ", "), shown, domain.DidYouMean(name, wire.SortedKeys(includable)))
		q.settings.Logprobs = q.settings.Logprobs || name == includeLogprobs
	}
}

// readEffort reads the reasoning effort from the field reasoning.
func (f responseReader) readEffort(q *generationRequest) {
	in := f.nested("reasoning", f.object("reasoning"), set("effort", "summary", "generate_summary"))
	q.reasoningField = "reasoning.effort"
	if effort := in.enum("effort", "none", "low", "medium", "high"); effort != "" {
		q.settings.Reasoning, q.response.effort = &engines.Reasoning{Effort: effort}, &effort
	}
	for _, name := range []string{"summary", "generate_summary"} {
		in.enum(name, "auto", "concise", "detailed")
	}
}

// readTextFormat reads the field text. A schema is in text.format itself, while response_format of
// chat completions has it in json_schema.
func (f responseReader) readTextFormat(q *generationRequest, data []byte) {
	q.response.format = map[string]any{"type": "text"}
	in := f.nested("text", f.object("text"), set("format", "verbosity"))
	in.enum("verbosity", "low", "medium", "high")
	object := in.object("format")
	if object == nil {
		return
	}
	q.response.format = object
	format := in.nested("format", object, set("type", "name", "description", "schema", "strict"))
	kind := format.enum("type", "text", engines.FormatJSON, engines.FormatSchema)
	format.require(format.given("type"), "type", "is required: text, json_object or json_schema")
	format.text("name", maxName)
	format.text("description", maxToolText)
	format.boolean("strict")
	schema := format.given("schema")
	format.require(kind != engines.FormatSchema || schema, "schema", "is required: a JSON Schema")
	format.require(kind == engines.FormatSchema || !schema, "schema",
		"requires the type json_schema: set type to json_schema, or leave the schema out")
	switch kind {
	case engines.FormatJSON:
		q.settings.Format = &engines.ResponseFormat{Type: kind}
	case engines.FormatSchema:
		q.settings.Format = &engines.ResponseFormat{Type: kind, Schema: format.schema("schema")}
		q.keepOrder(rawField(rawField(rawField(data, "text"), "format"), "schema"))
	}
}

// responseTools validates the field tools, and returns each tool in the form that chat completions
// have. It copies the parameters from data, the text of the body, so that their keys keep their
// order.
func (f responseReader) responseTools(data []byte, s *responseSettings) (tools []json.RawMessage) {
	named := map[string]bool{}
	var written []json.RawMessage
	_ = json.Unmarshal(rawField(data, "tools"), &written) // f.list adds a violation if the value is not a list
	for i, one := range f.list("tools", maxTools) {
		at := fmt.Sprintf("tools[%d]", i)
		object, ok := one.(map[string]any)
		if f.require(ok, at, "must be an object with type and name, not %s", wire.KindName(one)); !ok {
			continue
		}
		kind, isText := object["type"].(string)
		if f.require(kind == "function", at+".type", "%s is not supported: send a tool of the type function",
			wire.Quote(kind)); isText && kind != "function" {
			continue
		}
		f.nested(at, object, set("type", "name", "description", "parameters", "strict")).functionTool(named)
		if i < len(written) {
			tools = append(tools, chatTool(written[i]))
		}
		s.tools = append(s.tools, object)
	}
	return tools
}

// chatTool converts the JSON text of a tool in the Responses API to the form that chat completions
// have.
func chatTool(written json.RawMessage) json.RawMessage {
	function := []byte(`{"name":`)
	function = append(function, rawField(written, "name")...)
	for _, name := range []string{"description", "parameters", "strict"} {
		if value := rawField(written, name); value != nil {
			function = append(fmt.Appendf(function, `,%q:`, name), value...)
		}
	}
	return slices.Concat([]byte(`{"type":"function","function":`), function, []byte(`}}`))
}

// responseToolChoice reads the field tool_choice, in which a function's name is not nested as in
// chat completions. It returns the same results as fieldReader.toolChoice.
func (f responseReader) responseToolChoice(tools []json.RawMessage, single bool) (bool, *engines.ToolChoice) {
	object, ok := f.values["tool_choice"].(map[string]any)
	if !ok {
		return f.toolChoice(tools, single)
	}
	in := f.nested("tool_choice", object, set("type", "name"))
	kind, _ := object["type"].(string)
	in.require(kind == "function", "type", "%s is not supported: send auto, none, required or {\"type\": \"function\", "+
		"\"name\": …}", wire.Quote(kind))
	name := in.text("name", 256)
	in.require(kind != "function" || hasTool(tools, name), "name",
		"is not in tools: add the function to tools, or name one of them")
	return true, &engines.ToolChoice{Name: name, Single: true}
}
