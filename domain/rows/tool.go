package rows

import (
	"bytes"
	"encoding/json"

	"github.com/go-json-experiment/json/jsontext"
)

var (
	callNames     = []string{"type", "function", "id"}
	functionNames = []string{"name", "arguments", "description", "parameters"}
)

// calls reads the tool calls of a message, in value, and reports whether there are any. level is
// their level of nesting.
func (r *reader) calls(value []byte, level int) bool {
	n := 0
	for c := r.list("tool_calls", value, level); c != nil && c.more(); n++ {
		mark := r.pushPath("tool_calls", n)
		var v [3][]byte
		if r.object(c, callNames, v[:]) {
			r.requireNonEmpty("id", v[2])
			r.function(v[0], v[1], level+1, r.called)
		}
		r.path = r.path[:mark]
	}
	return n > 0
}

// tools reads the tools of a row, in value, and returns them if the reader keeps values. level is
// their level of nesting.
func (r *reader) tools(value []byte, level int) json.RawMessage {
	n := 0
	for c := r.list("tools", value, level); c != nil && c.more(); n++ {
		mark := r.pushPath("tools", n)
		var v [2][]byte
		if r.object(c, callNames[:2], v[:]) {
			r.function(v[0], v[1], level+1, r.offered)
		}
		r.path = r.path[:mark]
	}
	if n == 0 || !r.keep {
		return nil
	}
	return bytes.Clone(value)
}

// function reads a tool or a tool call, which both have the form {"type": "function", "function":
// {"name": …}}; kind and function are the values of these two fields. It calls rest with the fields
// that only tools or only tool calls have.
func (r *reader) function(kind, function []byte, level int, rest func(arguments, description, parameters []byte)) {
	if r.text("type", kind) && string(r.decode(kind)) != "function" {
		r.reject("type", ` must be "function"`)
	}
	switch {
	case function == nil:
		r.reject("function", " is missing; it must be an object")
		return
	case !isObject(function):
		r.reject("function", " must be an object")
		return
	}
	c := &r.cursors[level]
	c.reset(function)
	mark := r.pushPath("function", -1)
	var v [4][]byte
	r.rejectDuplicate(c.members(functionNames, v[:], nil))
	r.requireNonEmpty("name", v[0])
	rest(v[1], v[2], v[3])
	r.path = r.path[:mark]
}

func (r *reader) called(arguments, _, _ []byte) {
	if !r.text("arguments", arguments) {
		return
	}
	text := r.decode(arguments)
	if !jsontext.Value(text).IsValid(lenient...) {
		r.reject("arguments", " must be a string that holds JSON")
	}
	r.count(text)
}

func (r *reader) offered(_, description, parameters []byte) {
	if description != nil {
		r.text("description", description)
	}
	if parameters != nil && !isObject(parameters) {
		r.reject("parameters", " must be an object")
	}
}

// requireNonEmpty rejects the row if value is not a JSON string, or is "".
func (r *reader) requireNonEmpty(field string, value []byte) {
	if r.text(field, value) && string(value) == `""` {
		r.reject(field, " must not be empty")
	}
}
