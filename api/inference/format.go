package inference

import (
	"bytes"
	"encoding/json"

	"anneal/api/wire"
	"anneal/engines"
)

// keepSchemaOrder replaces the schema of response_format by its text in the body data, because the
// engine generates the properties in the order in which the schema has them.
func (q *generationRequest) keepSchemaOrder(data []byte) {
	format := q.settings.Format
	if format == nil || format.Schema == nil {
		return
	}
	nested := rawField(data, "response_format")
	written := rawField(nested, "json_schema")
	if written == nil {
		written = rawField(nested, "schema")
	}
	var text string
	if json.Unmarshal(written, &text) == nil {
		written = json.RawMessage(text)
	}
	if inner := rawField(written, "schema"); len(inner) > 0 && inner[0] == '{' && rawField(written, "type") == nil {
		written = inner
	}
	q.keepOrder(written)
}

// keepOrder replaces the schema of the format by written, its JSON text in the request, so that its
// properties keep their order.
func (q *generationRequest) keepOrder(written json.RawMessage) {
	var compact bytes.Buffer
	if json.Compact(&compact, written) == nil && compact.Len() > 0 {
		q.settings.Format.Schema = compact.Bytes()
	}
}

// rawField returns the JSON text of the field name in the JSON object data; nil if the field is
// absent or null. name is in snake_case; data may have it in lowerCamelCase.
func rawField(data []byte, name string) json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(data, &fields) != nil {
		return nil
	}
	for key, value := range fields {
		if wire.Snake(key) == name && string(value) != "null" {
			return value
		}
	}
	return nil
}

// toolChoice reads the field tool_choice. showTools reports whether the prompt contains the tools.
// choice is the tool that the model must call; nil if it need not call one. If single is true, the
// model makes at most one call.
func (f *fieldReader) toolChoice(tools []json.RawMessage, single bool) (showTools bool, choice *engines.ToolChoice) {
	const rule = "must be auto, none, required, or {\"type\": \"function\", \"function\": {\"name\": …}}"
	switch v := f.values["tool_choice"].(type) {
	case nil:
		return true, nil
	case string:
		f.require(v == "auto" || v == "none" || v == "required", "tool_choice", rule)
		if v != "required" {
			return v != "none", nil
		}
		f.require(len(tools) > 0, "tool_choice", "requires tools: add the tools that the model can call")
		return true, &engines.ToolChoice{Single: single}
	case map[string]any:
		in := f.nested("tool_choice", v, set("type", "function"))
		in.require(v["type"] == "function", "type", "must be function: no other tools are supported")
		function := in.nested("function", in.object("function"), set("name"))
		name := function.text("name", 256)
		function.require(name != "", "name", "is required: the name of the function that the model must call")
		function.require(name == "" || hasTool(tools, name), "name",
			"is not in tools: add the function to tools, or name one of them")
		return true, &engines.ToolChoice{Name: name, Single: true}
	}
	f.add("tool_choice", rule)
	return true, nil
}

// hasTool reports whether one of the tools has the name.
func hasTool(tools []json.RawMessage, name string) bool {
	for _, raw := range tools {
		var tool struct{ Function struct{ Name string } }
		if json.Unmarshal(raw, &tool) == nil && tool.Function.Name == name {
			return true
		}
	}
	return false
}
