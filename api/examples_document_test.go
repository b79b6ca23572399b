package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/openapi"
	"anneal/api/request"
	"anneal/api/wire"
	"anneal/internal/testutil"
)

// TestExamplesOfTheDocument builds a request from every example of the served document, sends it to a
// server in the order of the story, and checks that the server accepts it and that the response has
// the shape of the example response. The scripts contribute only the order, the API keys, and the
// actions of other parts of the platform.
func TestExamplesOfTheDocument(t *testing.T) {
	x := newExampleRun(t)
	x.executeAll()
	require.Empty(t, wire.SortedKeys(x.left), "examples of the document that the story does not have: run "+
		"go test ./api -run TestExamples -update")
	require.Empty(t, x.bare, "parameters without an example: use each in a request of the story, in "+
		"api/testdata/examples, or add it to defaultExample in api/openapi")
}

// TestParameterExamplesOfTheDocument sends the requests of the examples again with each parameter whose
// example belongs to no request, such as a read mask, and checks that the server accepts them.
func TestParameterExamplesOfTheDocument(t *testing.T) {
	x := newExampleRun(t)
	x.furthers = true
	x.executeAll()
	require.Greater(t, x.sent, 100)
}

// An exampleRun executes the examples of a document.
type exampleRun struct {
	*exampleStory
	doc  map[string]any
	real map[string]string // texts of the server, by the texts in the examples
	left map[string]bool   // examples not executed yet: ID of the operation, a space, and the key
	bare []string          // parameters without an example
	// sends the requests again with further parameters, without comparing responses
	furthers bool
	sent     int // number of requests with a further parameter
}

func newExampleRun(t *testing.T) *exampleRun {
	x := &exampleRun{exampleStory: newExampleStory(t), real: map[string]string{}, left: map[string]bool{}}
	data, _ := x.server.document.Bytes()
	require.NoError(t, json.Unmarshal(data, &x.doc))
	x.collect()
	return x
}

// executeAll executes the story with the requests of the document.
func (x *exampleRun) executeAll() {
	x.Helper()
	for _, step := range readStory(x) {
		if step.action != nil {
			x.act(step.action)
			continue
		}
		r := x.request(step.request.method, strings.ReplaceAll(step.request.path, "$", ""), "", nil)
		x.execute(x.document().OperationID(r), openapi.Example{Summary: step.summary}.Key(), step)
	}
}

// eachOperation yields the operations of the document.
func (x *exampleRun) eachOperation(yield func(path, method string, op map[string]any)) {
	for path, item := range x.doc["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			yield(path, strings.ToUpper(method), op.(map[string]any))
		}
	}
}

// collect records all examples of the document, and the parameters without an example.
func (x *exampleRun) collect() {
	x.eachOperation(func(_, _ string, op map[string]any) {
		id := op["operationId"].(string)
		for _, parameter := range x.parametersOf(op) {
			if parameter["example"] == nil && parameter["examples"] == nil {
				x.bare = append(x.bare, fmt.Sprintf("%s: %v", id, parameter["name"]))
			}
			x.leave(id, parameter)
		}
		for _, content := range contentsOf(at(op, "requestBody"), at(op, "responses", "200")) {
			x.leave(id, content)
		}
	})
	slices.Sort(x.bare)
	require.NotEmpty(x, x.left)
}

// leave records that the examples of a parameter or a media type are still to be executed.
func (x *exampleRun) leave(id string, described map[string]any) {
	examples, _ := described["examples"].(map[string]any)
	for key := range examples {
		x.left[id+" "+key] = true
	}
}

// contentsOf returns the media types of a request body and a response.
func contentsOf(described ...any) map[string]map[string]any {
	out := map[string]map[string]any{}
	for _, one := range described {
		content, _ := at(one, "content").(map[string]any)
		for media, value := range content {
			out[media] = value.(map[string]any)
		}
	}
	return out
}

// parametersOf returns the parameters of an operation, with components instead of references.
func (x *exampleRun) parametersOf(op map[string]any) (all []map[string]any) {
	for _, one := range op["parameters"].([]any) {
		if ref, ok := at(one, "$ref").(string); ok {
			one = at(x.doc, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
		}
		all = append(all, one.(map[string]any))
	}
	return all
}

// valueOf returns the value of an example in the examples of a parameter or a media type.
func valueOf(described map[string]any, key string) (any, bool) {
	example, ok := at(described, "examples", key).(map[string]any)
	return example["value"], ok
}

// execute sends the request of an example, and checks the response.
func (x *exampleRun) execute(id, key string, step exampleStep) {
	x.Helper()
	delete(x.left, id+" "+key)
	x.eachOperation(func(path, _ string, op map[string]any) {
		if op["operationId"] != id {
			return
		}
		sent, ok := x.requestOf(path, op, key)
		require.True(x, ok, "%s: the document lacks the example %q of %s: run go test ./api -run TestExamples -update",
			step.at, key, id)
		table := x.operationOf(id)
		content := contentsOf(at(op, "responses", "200"))
		if _, streamed := valueOf(content["text/event-stream"], key); streamed && table.Method == http.MethodGet {
			sent.Headers["Accept"] = "text/event-stream"
		}
		a := x.exchange(x.requestFor(table, sent, step.request.alias), step.events)
		require.Equal(x, http.StatusOK, a.status, "%s: %s", step.at, a.body)
		want, ok := valueOf(content[mediaOf(a)], key)
		require.True(x, ok, "%s: the response has the media type %s, which the example %q lacks", step.at, mediaOf(a), key)
		x.sameShape(step.at, want, a, table.Media != "")
		if x.furthers && step.events == 0 && !strings.Contains(sent.Path, request.PageTokenParameter.Name) {
			x.further(op, sent, step)
		}
	})
}

// requestOf returns the request of an example, from the document alone.
func (x *exampleRun) requestOf(path string, op map[string]any, key string) (sent openapi.Example, found bool) {
	x.Helper()
	query := url.Values{}
	sent = openapi.Example{Headers: map[string]string{}}
	for _, parameter := range x.parametersOf(op) {
		value, ok := valueOf(parameter, key)
		if !ok {
			continue
		}
		found = true
		if object, ok := value.(map[string]any); ok { // a parameter of the style deepObject
			for key, one := range object {
				query.Set(parameter["name"].(string)+"["+key+"]", parameterText(one))
			}
			continue
		}
		name, text := parameter["name"].(string), x.translate(parameterText(value)).(string)
		switch parameter["in"] {
		case "path":
			path = strings.ReplaceAll(path, "{"+name+"}", text)
		case "query":
			query.Set(name, text)
		default:
			sent.Headers[name] = text
		}
	}
	if sent.Path = path; len(query) > 0 {
		sent.Path += "?" + query.Encode()
	}
	for _, content := range contentsOf(at(op, "responses", "200")) {
		_, ok := valueOf(content, key)
		found = found || ok
	}
	for _, content := range contentsOf(at(op, "requestBody")) {
		value, ok := valueOf(content, key)
		if !ok {
			continue
		}
		data := testutil.Marshal(x, x.translate(value))
		sent.Request, sent.Files = data, map[string]string{}
		files, _ := at(content, "examples", key, "x-files").(map[string]any)
		for name, text := range files {
			sent.Files[name] = text.(string)
		}
	}
	return sent, found
}

// parameterText returns the value of a parameter as it is sent.
func parameterText(value any) string {
	list, ok := value.([]any)
	if !ok {
		return fmt.Sprint(value)
	}
	var words []string
	for _, one := range list {
		words = append(words, fmt.Sprint(one))
	}
	return strings.Join(words, ",")
}

// translate returns a value of the document in which texts of the examples, such as page tokens,
// are replaced by those that the server has returned.
func (x *exampleRun) translate(value any) any {
	switch v := value.(type) {
	case string:
		if known, ok := x.real[v]; ok {
			return known
		}
	case []any:
		for i := range v {
			v[i] = x.translate(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = x.translate(v[name])
		}
	}
	return value
}

// sameShape requires that a response has the fields and the types of an example response. The lists
// have the same lengths. excerpt states that the example shows a part of the response.
func (x *exampleRun) sameShape(step string, want any, a response, excerpt bool) {
	x.Helper()
	if _, isText := want.(string); isText {
		require.NotEmpty(x, a.body, step)
		return
	}
	var got any
	require.NoError(x, json.Unmarshal(a.body, &got), "%s: %s", step, a.body)
	var differences []string
	x.differ("", want, got, excerpt, &differences)
	require.True(x, x.furthers || len(differences) == 0, "%s: %v: the response differs from the example: %s", step,
		differences, a.body)
}

// differ appends the differences in shape between an example and a response, and records the texts
// of the server in x.real.
func (x *exampleRun) differ(path string, want, got any, excerpt bool, differences *[]string) {
	add := func(format string, args ...any) {
		*differences = append(*differences, path+": "+fmt.Sprintf(format, args...))
	}
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			add("is %T, not an object", got)
			return
		}
		for _, name := range wire.SortedKeys(w) {
			if _, ok := g[name]; !ok {
				add("lacks %s", name)
				continue
			}
			x.differ(wire.Join(path, name), w[name], g[name], excerpt, differences)
		}
		for _, name := range wire.SortedKeys(g) {
			if _, ok := w[name]; !ok && !excerpt {
				add("has %s in addition", name)
			}
		}
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			add("is %v, not a list of %d items", got, len(w))
			return
		}
		for i := range w {
			x.differ(fmt.Sprintf("%s[%d]", path, i), w[i], g[i], excerpt, differences)
		}
	case string:
		g, ok := got.(string)
		if !ok {
			add("is %T, not a string", got)
		} else if g != w {
			x.real[w] = g
		}
	default:
		if fmt.Sprintf("%T", want) != fmt.Sprintf("%T", got) {
			add("is %T, not %T", got, want)
		}
	}
}

// further sends the request again with each query or header parameter whose example belongs to no
// request. It leaves out page tokens, each of which is valid for one list only: the story has
// requests with page tokens.
func (x *exampleRun) further(op map[string]any, base openapi.Example, step exampleStep) {
	x.Helper()
	table, last := x.operationOf(op["operationId"].(string)), x.last
	for _, parameter := range x.parametersOf(op) {
		value, ok := parameter["example"]
		name := parameter["name"].(string)
		if !ok || name == request.PageTokenParameter.Name {
			continue
		}
		// a position belongs to one log, like a page token to one list
		if name == request.MinPositionHeader || name == request.AsOfParameter.Name {
			value = x.world.Position()
		}
		one := base
		address, err := url.Parse(base.Path)
		require.NoError(x, err)
		switch {
		case parameter["in"] == "query":
			query := address.Query()
			query.Set(name, parameterText(value))
			address.RawQuery = query.Encode()
			one.Path = address.String()
		case table.Method == http.MethodGet:
			one.Headers = map[string]string{name: parameterText(value)}
		default:
			continue
		}
		a := x.exchange(x.requestFor(table, one, step.request.alias), 0)
		require.Equal(x, http.StatusOK, a.status, "%s with the example of %s: %s", step.at, name, a.body)
		x.sent++
	}
	x.last = last
}
