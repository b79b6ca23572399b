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

// calls reads an assistant's tool calls and tells whether there are any.
func (r *reader) calls(value []byte, level int) bool {
	n := 0
	for c := r.list("tool_calls", value, level); c != nil && c.more(); n++ {
		mark := r.into("tool_calls", n)
		var v [3][]byte
		if r.object(c, callNames, v[:]) {
			r.filled("id", v[2])
			r.function(v[0], v[1], level+1, r.called)
		}
		r.path = r.path[:mark]
	}
	return n > 0
}

// tools reads the tools that a row offers, and answers them if they are kept.
func (r *reader) tools(value []byte, level int) json.RawMessage {
	n := 0
	for c := r.list("tools", value, level); c != nil && c.more(); n++ {
		mark := r.into("tools", n)
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

// function reads {"type": "function", "function": {"name": …}}, as both tools
// and calls of them are written.
func (r *reader) function(kind, function []byte, level int, rest func(arguments, description, parameters []byte)) {
	if r.text("type", kind) && string(r.decode(kind)) != "function" {
		r.fault("type", " must be function")
	}
	switch {
	case function == nil:
		r.fault("function", " is missing; it must be an object")
		return
	case !isObject(function):
		r.fault("function", " must be an object")
		return
	}
	c := &r.cursors[level]
	c.reset(function)
	mark := r.into("function", -1)
	var v [4][]byte
	r.once(c.members(functionNames, v[:], nil))
	r.filled("name", v[0])
	rest(v[1], v[2], v[3])
	r.path = r.path[:mark]
}

func (r *reader) called(arguments, _, _ []byte) {
	if !r.text("arguments", arguments) {
		return
	}
	text := r.decode(arguments)
	if !jsontext.Value(text).IsValid(lenient...) {
		r.fault("arguments", " must be a string that holds JSON")
	}
	r.count(text)
}

func (r *reader) offered(_, description, parameters []byte) {
	if description != nil {
		r.text("description", description)
	}
	if parameters != nil && !isObject(parameters) {
		r.fault("parameters", " must be an object")
	}
}

// filled refuses what is no text, or an empty one.
func (r *reader) filled(field string, value []byte) {
	if r.text(field, value) && string(value) == `""` {
		r.fault(field, " must not be empty")
	}
}
