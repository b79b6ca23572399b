package api

import (
	"bytes"
	"encoding/json"

	"anneal/api/wire"
	"anneal/engines"
)

// keepOrder takes the schema of response_format as it was written in the body,
// since its properties are answered in their order.
func (q *inferenceRequest) keepOrder(data []byte) {
	format := q.settings.Format
	if format == nil || format.Schema == nil {
		return
	}
	inside := rawField(data, "response_format")
	written := rawField(inside, "json_schema")
	if written == nil {
		written = rawField(inside, "schema")
	}
	var text string
	if json.Unmarshal(written, &text) == nil {
		written = json.RawMessage(text)
	}
	if inner := rawField(written, "schema"); len(inner) > 0 && inner[0] == '{' && rawField(written, "type") == nil {
		written = inner
	}
	var compact bytes.Buffer
	if json.Compact(&compact, written) == nil && compact.Len() > 0 {
		format.Schema = compact.Bytes()
	}
}

// rawField is a field of an object as it is written, under its name in
// snake_case or lowerCamelCase; nil when it is absent or null.
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

// calls reads tool_choice: whether the model is told of the tools, and which
// calls it must answer with.
func (f *inferenceFields) calls(tools []json.RawMessage, single bool) (told bool, calls *engines.ToolChoice) {
	const rule = "must be auto, none, required, or {\"type\": \"function\", \"function\": {\"name\": …}}"
	switch v := f.values["tool_choice"].(type) {
	case nil:
		return true, nil
	case string:
		f.require(v == "auto" || v == "none" || v == "required", "tool_choice", rule)
		if v != "required" {
			return v != "none", nil
		}
		f.require(len(tools) > 0, "tool_choice", "needs tools: give those of which one must be called")
		return true, &engines.ToolChoice{Single: single}
	case map[string]any:
		in := f.within("tool_choice", v, set("type", "function"))
		in.require(v["type"] == "function", "type", "must be function: there are no other tools")
		function := in.within("function", in.object("function"), set("name"))
		name := function.text("name", 256)
		function.require(name != "", "name", "is required: the function that must be called")
		function.require(name == "" || named(tools, name), "name", "is that of no tool: add it to tools, or name one of them")
		return true, &engines.ToolChoice{Name: name, Single: true}
	}
	f.add("tool_choice", rule)
	return true, nil
}

// named tells whether a tool has that name.
func named(tools []json.RawMessage, name string) bool {
	for _, raw := range tools {
		var tool struct{ Function struct{ Name string } }
		if json.Unmarshal(raw, &tool) == nil && tool.Function.Name == name {
			return true
		}
	}
	return false
}
