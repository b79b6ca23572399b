package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/require"
)

func init() {
	openapi3filter.RegisterBodyDecoder("text/html", openapi3filter.RegisteredBodyDecoder("text/plain"))
}

// documents are those that servers of tests served, read: by their ETags.
var documents sync.Map

// document is what this stage's server says of itself.
func (s *stage) document() *openapi3.T {
	s.Helper()
	data, tag := s.server.about.bytes()
	if known, ok := documents.Load(tag); ok {
		return known.(*openapi3.T)
	}
	doc, err := openapi3.NewLoader().LoadFromData(data)
	require.NoError(s, err)
	closed := false
	for name, component := range doc.Components.Schemas {
		if len(component.Value.Properties) > 0 && !slices.Contains([]string{"CompletionBody", "ChatBody", "ChatMessage"}, name) { // clients may meet new fields; here all are known
			component.Value.AdditionalProperties = openapi3.AdditionalProperties{Has: &closed}
		}
	}
	documents.Store(tag, doc)
	return doc
}

// hold holds an exchange against the document that this very server serves:
// the answer always, the request when it was answered with success.
func (s *stage) hold(r *http.Request, sent []byte, a answer) {
	s.Helper()
	doc := s.document()
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	found := chi.NewRouteContext()
	if !s.server.routes.(chi.Routes).Match(found, method, r.URL.Path) || verbOf(found.RoutePattern()) != verbOf(r.URL.Path) || doc.Paths.Value(found.RoutePattern()) == nil ||
		doc.Paths.Value(found.RoutePattern()).GetOperation(method) == nil {
		s.holdUndescribed(r, a)
		return
	}
	item := doc.Paths.Value(found.RoutePattern())
	request := asDescribed(s, r, sent)
	input := &openapi3filter.RequestValidationInput{
		Request: withBody(r, request), PathParams: map[string]string{}, QueryParams: described(r.URL.Query()),
		Route: &routers.Route{Spec: doc, Path: found.RoutePattern(), PathItem: item, Method: method, Operation: item.GetOperation(method)},
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true, MultiError: true,
			ExcludeReadOnlyValidations: true, ExcludeRequestBody: sent == nil, SkipSettingDefaults: true},
	}
	for i, name := range found.URLParams.Keys {
		input.PathParams[name] = found.URLParams.Values[i]
	}
	if a.status < 300 {
		s.agreed(openapi3filter.ValidateRequest(s.Context(), input), "%s %s is answered, and no request of the document: %s", r.Method, r.URL, sent)
	}
	if r.Method == http.MethodHead {
		return
	}
	output := &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: a.status, Header: a.header, Options: input.Options,
		Body: io.NopCloser(bytes.NewReader(a.body))}
	if strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
		s.holdStream(r, found.RoutePattern(), a.body)
		return
	}
	s.agreed(openapi3filter.ValidateResponse(s.Context(), output), "%s %s: no answer of the document: %d %s", r.Method, r.URL, a.status, a.body)
	if a.status == http.StatusOK {
		s.keepExample(input.Route.Operation.OperationID, r, request, a)
	}
}

// holdUndescribed: what the document does not describe is refused, in the shape
// of its path. Signed URLs lead to files, which it does not describe either.
func (s *stage) holdUndescribed(r *http.Request, a answer) {
	s.Helper()
	if strings.HasPrefix(r.URL.Path, "/blobs/") || strings.HasPrefix(r.URL.Path, "/docs/") || r.URL.Path == "/" || r.Method == http.MethodHead {
		return
	}
	require.GreaterOrEqual(s, a.status, 400, "%s %s is answered and not described", r.Method, r.URL)
	name := "ManagementError"
	if isInference(r) {
		name = "InferenceError"
	}
	s.fits(name, a.body)
}

// holdStream holds every piece of a stream against the type that it is of.
func (s *stage) holdStream(r *http.Request, route string, stream []byte) {
	s.Helper()
	name := ""
	for _, op := range s.server.table {
		if op.path == route && op.streams != nil {
			name = componentName(op.streams)
		}
	}
	require.NotEmpty(s, name, "%s sends a stream and does not say so", r.URL)
	for line := range strings.Lines(string(stream)) {
		data, isData := strings.CutPrefix(strings.TrimRight(line, "\n"), "data: ")
		switch {
		case !isData || data == "[DONE]":
		case strings.HasPrefix(data, `{"error":`):
			s.fits("InferenceError", []byte(data))
		default:
			s.fits(name, []byte(data))
		}
	}
}

// fits requires that JSON fits a component of the document.
func (s *stage) fits(component string, data []byte) {
	s.Helper()
	var value any
	require.NoError(s, json.Unmarshal(data, &value), "%s", data)
	err := s.document().Components.Schemas[component].Value.VisitJSON(value, openapi3.EnableJSONSchema2020(), openapi3.MultiErrors())
	s.agreed(err, "no %s: %s", component, data)
}

// agreed requires that the document and the behaviour agree. Of the error its
// reasons are told and not the whole schemas.
func (s *stage) agreed(err error, format string, args ...any) {
	s.Helper()
	if err == nil {
		return
	}
	var reasons []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line == "Schema:" {
			break
		}
		reasons = append(reasons, line)
	}
	require.Fail(s, strings.Join(reasons, "\n"), append([]any{format}, args...)...)
}

// asDescribed is a request's body as the document describes it: the introduction
// says that null is as good as nothing, and that names may be in snake_case.
func asDescribed(s *stage, r *http.Request, sent []byte) []byte {
	s.Helper()
	var tree any
	if len(sent) == 0 || json.Unmarshal(sent, &tree) != nil { // the server says so as well
		return nil
	}
	data, err := json.Marshal(tidied(tree, !isInference(r)))
	require.NoError(s, err)
	return data
}

func withBody(r *http.Request, body []byte) *http.Request {
	out := r.Clone(context.WithoutCancel(r.Context()))
	out.GetBody, out.Body = nil, http.NoBody
	if body != nil {
		out.Body = io.NopCloser(bytes.NewReader(body))
		out.Header.Set("Content-Type", "application/json")
	}
	return out
}

// verbatim are the fields whose keys are the caller's own.
var verbatim = set("loadTargets", "fileContents", "filenameToSize", "accelerators")

func tidied(value any, camelCase bool) any {
	object, ok := value.(map[string]any)
	if !ok {
		if list, isList := value.([]any); isList {
			for i := range list {
				list[i] = tidied(list[i], camelCase)
			}
		}
		return value
	}
	out := map[string]any{}
	for name, inner := range object {
		if camelCase {
			name = camel(name)
		}
		if inner != nil {
			out[name] = tidied(inner, camelCase && !verbatim[name])
		}
	}
	return out
}

func described(query url.Values) url.Values {
	out := url.Values{}
	for name, values := range query {
		if values[0] != "" { // as good as left out
			out[camel(name)] = append(out[camel(name)], values...)
		}
	}
	return out
}
