package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/wire"
)

// TestLimitsOfTheDocument: one past every limit that the document states for a
// field of a JSON body, and a value that an enumeration lacks, is refused by
// that field's name. Limits that it does not state are in TestBounds.
func TestLimitsOfTheDocument(t *testing.T) {
	rows := map[string]row{}
	for _, r := range operationRows() {
		rows[r.id] = r
	}
	s := newStage(t, Limits{})
	data, _ := s.server.about.bytes()
	var doc map[string]any
	require.NoError(t, json.Unmarshal(data, &doc))
	tried := 0
	for _, item := range doc["paths"].(map[string]any) {
		for _, op := range item.(map[string]any) {
			id, _ := at(op, "operationId").(string)
			body, ok := at(op, "requestBody", "content", "application/json", "schema").(map[string]any)
			if !ok {
				continue
			}
			t.Run(id, func(t *testing.T) {
				x := &examination{stage: newStage(t, Limits{}), valid: parseRequest(rows[id].request)}
				if rows[id].stage != nil {
					rows[id].stage(x.stage)
				}
				x.set(rows[id].scene)
				before := x.position()
				eachLimit(doc, body, nil, func(path []string, value any) {
					tried++
					x.pastLimit(path, value)
				})
				require.Equal(t, before, x.position(), "what was refused changed nothing")
			})
		}
	}
	require.Greater(t, tried, 200)
}

// at is what lies in a tree of JSON below keys; nil where there is nothing.
func at(tree any, keys ...string) any {
	for _, key := range keys {
		object, _ := tree.(map[string]any)
		tree = object[key]
	}
	return tree
}

// eachLimit yields every field below a schema that a request may set, and a
// value past each of its limits. "[0]" in a path is an entry of a list.
func eachLimit(doc, schema map[string]any, path []string, yield func([]string, any)) {
	if schema["readOnly"] == true {
		return
	}
	for ref, ok := schema["$ref"].(string); ok; ref, ok = schema["$ref"].(string) {
		schema = at(doc, "components", "schemas", ref[strings.LastIndex(ref, "/")+1:]).(map[string]any)
	}
	if most, ok := schema["maximum"].(float64); ok {
		yield(path, most+1)
	}
	if least, ok := schema["minimum"].(float64); ok {
		yield(path, least-1)
	}
	if most, ok := schema["maxLength"].(float64); ok {
		yield(path, strings.Repeat("x", int(most)+1))
	}
	if schema["enum"] != nil {
		yield(path, "BOGUS")
	}
	if schema["format"] == "date-time" {
		yield(path, "soon")
	}
	if entries, ok := schema["items"].(map[string]any); ok {
		eachLimit(doc, entries, append(path[:len(path):len(path)], "[0]"), yield)
	}
	fields, _ := schema["properties"].(map[string]any)
	for _, name := range wire.SortedKeys(fields) {
		if name == "name" {
			continue // of the resource, which a create ignores and a change compares
		}
		eachLimit(doc, fields[name].(map[string]any), append(path[:len(path):len(path)], name), yield)
	}
}

// pastLimit sends the row's request with a value at a path, and requires that it is
// refused with that path named.
func (x *examination) pastLimit(path []string, value any) {
	x.Helper()
	var tree any
	require.NoError(x, json.Unmarshal([]byte(x.valid.body), &tree))
	data, err := json.Marshal(put(tree, path, value))
	require.NoError(x, err)
	a := x.ask(func(one *scripted) { one.body = string(data) })
	name := strings.ReplaceAll(strings.Join(path, "."), ".[0]", "")
	require.Equal(x, http.StatusBadRequest, a.status, "%s: %s", name, a.body)
	for _, field := range violations(x, a) {
		if strings.HasPrefix(strings.ReplaceAll(field, "[0]", ""), name) {
			return
		}
	}
	require.Fail(x, "the field is not named", "%s: %s", name, a.body)
}

// put is a tree with a value at a path, made where it is not there.
func put(tree any, path []string, value any) any {
	if len(path) == 0 {
		return value
	}
	if path[0] == "[0]" {
		list, _ := tree.([]any)
		if len(list) == 0 {
			list = []any{nil}
		}
		list[0] = put(list[0], path[1:], value)
		return list
	}
	object, _ := tree.(map[string]any)
	if object == nil {
		object = map[string]any{}
	}
	object[path[0]] = put(object[path[0]], path[1:], value)
	return object
}
