package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"anneal/api/openapi"
	"anneal/api/request"
	"anneal/api/wire"
	"anneal/internal/testutil"
)

// TestExamples checks that the examples of the document are the exchanges of the story, and that
// every operation has one. With -update it writes the examples to the file.
func TestExamples(t *testing.T) {
	s := newExampleStory(t)
	hidden := &pseudonyms{s.url, map[string]string{}, map[string]int{}}
	var examples []openapi.Example
	seen, keys := map[string]bool{}, map[string]string{}
	for _, step := range readStory(t) {
		if step.action != nil {
			s.act(step.action)
			continue
		}
		example := s.record(hidden, step)
		examples = append(examples, example)
		seen[example.Operation] = true
		key := example.Operation + " " + example.Key()
		require.Empty(t, keys[key], "%s: an example of %s with the summary %q exists: choose another summary", step.at,
			example.Operation, step.summary)
		keys[key] = step.at
	}
	var missing []string
	for _, op := range (&Server{}).operations() {
		if !seen[op.ID] && !op.Hidden {
			missing = append(missing, fmt.Sprintf("%s (%s %s)", op.ID, op.Method, op.Path))
		}
	}
	require.Empty(t, missing, "operations without an example: add a request with a summary to the script in "+
		"api/testdata/examples where it fits the story, then go test ./api -run TestExamples -update")
	got, err := json.MarshalIndent(examples, "", " ")
	require.NoError(t, err)
	got = append(got, '\n')
	if *update {
		require.NoError(t, os.WriteFile("openapi/examples.json", got, 0o644))
		return
	}
	compare(t, strings.Split(string(openapi.ExamplesJSON), "\n"), strings.Split(string(got), "\n"))
}

// operationOf returns the operation with an ID.
func (s *exampleStory) operationOf(id string) *request.Operation {
	s.Helper()
	i := slices.IndexFunc(s.server.table, func(op request.Operation) bool { return op.ID == id })
	require.GreaterOrEqual(s, i, 0, id)
	return &s.server.table[i]
}

// record sends the request of a step, and returns the exchange as an example.
func (s *exampleStory) record(hidden *pseudonyms, step exampleStep) openapi.Example {
	s.Helper()
	var page struct{ NextPageToken string }
	_ = json.Unmarshal(s.last.body, &page)
	path := func(token string) string { return strings.ReplaceAll(step.request.path, "$nextPageToken", token) }
	found := s.document().OperationID(s.request(step.request.method, path(page.NextPageToken), "", nil))
	require.NotEmpty(s, found, "%s: the document does not describe %s %s", step.at, step.request.method,
		step.request.path)
	op := s.operationOf(found)
	example := openapi.Example{Operation: op.ID, Summary: step.summary, Path: path(page.NextPageToken),
		Headers: step.headers}
	switch {
	case op.Form != nil:
		example.Request, example.Files = s.formOf(op, step)
	case step.request.body != "":
		example.Request = json.RawMessage(step.request.body)
		require.True(s, json.Valid(example.Request), "%s: the body is not JSON", step.at)
	}
	a := s.exchange(s.requestFor(op, example, step.request.alias), step.events)
	require.Equal(s, http.StatusOK, a.status, "%s: %s", step.at, a.body)
	example.Media = mediaOf(a)
	example.Path = path(hidden.known[page.NextPageToken])
	example.Response = s.shown(op, hidden, a)
	return example
}

// formOf returns the fields of a form in the types of the form's schema, and the text files.
func (s *exampleStory) formOf(op *request.Operation, step exampleStep) (json.RawMessage, map[string]string) {
	s.Helper()
	form, files := map[string]any{}, map[string]string{}
	if name := step.request.file; name != "" {
		form["file"] = "@" + name
		if content := exampleFile(s, name); utf8.Valid(content) && !bytes.Contains(content, []byte{0}) {
			files[name] = string(content)
		}
	}
	for name, values := range step.fields {
		field, known := wire.StructOf(op.Form).Field(name)
		require.True(s, known, "%s: the form has no field %s", step.at, name)
		switch wire.KindOf(field.Type) {
		case wire.List:
			form[name] = values
		case wire.Bool:
			form[name] = values[0] == "true"
		case wire.Int:
			form[name] = int(s.number(values[0]))
		default:
			form[name] = values[0]
		}
	}
	data := testutil.Marshal(s, form)
	return data, files
}

// requestFor returns the request of an example, with the API key of an ID.
func (s *exampleStory) requestFor(op *request.Operation, e openapi.Example, alias string) *http.Request {
	s.Helper()
	var body io.Reader = http.NoBody
	media := ""
	if op.Form != nil {
		body, media = s.multipart(e)
	} else if e.Request != nil {
		body, media = bytes.NewReader(e.Request), "application/json"
	}
	r := s.request(op.Method, e.Path, alias, body)
	if s.proxy != "" {
		r.URL.Host = s.proxy
	}
	if media != "" {
		r.Header.Set("Content-Type", media)
	}
	for name, value := range e.Headers {
		r.Header.Set(name, value)
	}
	return r
}

// multipart returns the body of an example with a form, and its media type.
func (s *exampleStory) multipart(e openapi.Example) (io.Reader, string) {
	s.Helper()
	var fields map[string]any
	require.NoError(s, json.Unmarshal(e.Request, &fields))
	var out bytes.Buffer
	form := multipart.NewWriter(&out)
	for _, name := range wire.SortedKeys(fields) {
		values, isList := fields[name].([]any)
		if !isList {
			values = []any{fields[name]}
		}
		for _, value := range values {
			text := fmt.Sprint(value)
			file, isFile := strings.CutPrefix(text, "@")
			if !isFile {
				require.NoError(s, form.WriteField(name, text))
				continue
			}
			part, err := form.CreateFormFile(name, filepath.Base(file))
			require.NoError(s, err)
			content, inDocument := e.Files[file]
			if !inDocument {
				content = string(exampleFile(s, file))
			}
			_, err = io.WriteString(part, content)
			require.NoError(s, err)
		}
	}
	require.NoError(s, form.Close())
	return &out, form.FormDataContentType()
}

// shown returns the response of an example: JSON with pseudonyms, an excerpt of a document,
// or the first lines of another page.
func (s *exampleStory) shown(op *request.Operation, hidden *pseudonyms, a response) json.RawMessage {
	s.Helper()
	text := string(a.body)
	switch {
	case op.ID == "getOpenAPI" || op.ID == "getAsyncAPI":
		data := testutil.Marshal(s, beginningOf(a.json(s)))
		return data
	case strings.HasSuffix(mediaOf(a), "json"):
		return json.RawMessage(hidden.replace(text))
	case op.Media != "":
		text = shorten(text)
	}
	data := testutil.Marshal(s, hidden.replace(text))
	return data
}

// beginningOf returns an excerpt of the OpenAPI or AsyncAPI document. The servers of the latter have
// references that a linter of OpenAPI looks up in the wrong document.
func beginningOf(document map[string]any) map[string]any {
	info := document["info"].(map[string]any)
	excerpt := map[string]any{"openapi": document["openapi"], "asyncapi": document["asyncapi"],
		"info":    map[string]any{"title": info["title"], "version": info["version"], "summary": info["summary"]},
		"servers": document["servers"]}
	if document["asyncapi"] != nil {
		delete(excerpt, "servers")
	}
	for _, of := range []map[string]any{excerpt, excerpt["info"].(map[string]any)} {
		maps.DeleteFunc(of, func(_ string, value any) bool { return value == nil })
	}
	return excerpt
}

// shortLines is the number of lines that an example shows of a response that is not JSON.
const shortLines = 4

// shorten returns the first lines of a text.
func shorten(text string) string {
	lines := strings.SplitAfterN(text, "\n", shortLines+1)
	return strings.Join(lines[:min(len(lines), shortLines)], "")
}
