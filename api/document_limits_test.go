package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/internal/testutil"
)

// TestLimitsOfTheDocument checks that a value beyond any limit that the document states for a field
// of a JSON body is rejected with the name of the field, and so is a value that is not in an
// enumeration. TestBounds checks the limits that the document does not state.
func TestLimitsOfTheDocument(t *testing.T) {
	rows := map[string]row{}
	for _, r := range operationRows() {
		rows[r.id] = r
	}
	s := newHarness(t, request.Limits{})
	data, _ := s.server.document.Bytes()
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
				x := &operationTest{harness: newHarness(t, request.Limits{}), valid: parseRequest(rows[id].request)}
				if rows[id].prepare != nil {
					rows[id].prepare(x.harness)
				}
				x.set(rows[id].scene)
				before := x.position()
				eachLimit(doc, body, nil, func(path []string, value any) {
					tried++
					x.pastLimit(path, value)
				})
				require.Equal(t, before, x.position(), "rejected requests change nothing")
			})
		}
	}
	require.Greater(t, tried, 200)
}

// at returns the value at the path keys in a JSON tree, or nil when it is absent.
func at(tree any, keys ...string) any {
	for _, key := range keys {
		object, _ := tree.(map[string]any)
		tree = object[key]
	}
	return tree
}

// eachLimit yields the path of every field below a schema that a request may set, with a value
// beyond each limit of the field. "[0]" in a path is the first element of a list.
func eachLimit(doc, schema map[string]any, path []string, yield func([]string, any)) {
	if schema["readOnly"] == true {
		return
	}
	for ref, ok := schema["$ref"].(string); ok; ref, ok = schema["$ref"].(string) {
		schema = at(doc, "components", "schemas", ref[strings.LastIndex(ref, "/")+1:]).(map[string]any)
	}
	if limit, ok := schema["maximum"].(float64); ok {
		yield(path, limit+1)
	}
	if limit, ok := schema["minimum"].(float64); ok {
		yield(path, limit-1)
	}
	if limit, ok := schema["maxLength"].(float64); ok {
		yield(path, strings.Repeat("x", int(limit)+1))
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
			continue // a create ignores the name of the resource, and an update compares it
		}
		eachLimit(doc, fields[name].(map[string]any), append(path[:len(path):len(path)], name), yield)
	}
}

// pastLimit sends the request of the test case with the value at a path, and requires an error that
// names the path, and the value if it is a number.
func (x *operationTest) pastLimit(path []string, value any) {
	x.Helper()
	var tree any
	require.NoError(x, json.Unmarshal([]byte(x.valid.body), &tree))
	data := testutil.Marshal(x, put(tree, path, value))
	a := x.sendRow(func(one *scripted) { one.body = string(data) })
	name := strings.ReplaceAll(strings.Join(path, "."), ".[0]", "")
	require.Equal(x, http.StatusBadRequest, a.status, "%s: %s", name, a.body)
	if number, ok := value.(float64); ok {
		require.Regexp(x, fmt.Sprintf(`(is|not) %v\b`, int64(number)), string(a.body), name)
	}
	for _, field := range violations(x, a) {
		if strings.HasPrefix(strings.ReplaceAll(field, "[0]", ""), name) {
			return
		}
	}
	require.Fail(x, "the field is not named", "%s: %s", name, a.body)
}

// put returns the tree with the value at a path. It creates the objects and lists of the path that
// are absent.
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
