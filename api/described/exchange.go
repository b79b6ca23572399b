package described

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

// An Exchange is a request and its whole answer.
type Exchange struct {
	Request *http.Request // its body is not looked at
	Sent    []byte        // a JSON body; nil when there was none, or a form
	Status  int
	Header  http.Header
	Body    []byte
}

// Hold says where the document and an exchange disagree: the answer always, the
// request when it was answered with success. It answers the operation's ID, ""
// when the document has none, and the request's body as the document describes
// it.
func (d *Document) Hold(x Exchange) (operation string, request []byte, err error) {
	r := x.Request
	route, values, op := d.find(r)
	if op == nil {
		return "", nil, d.holdUndescribed(x)
	}
	if request, err = asDescribed(r, x.Sent); err != nil {
		return "", nil, err
	}
	input := &openapi3filter.RequestValidationInput{
		Request: withBody(r, request), PathParams: values, QueryParams: withoutEmpty(r.URL.Query()),
		Route: &routers.Route{Spec: d.T, Path: route.path, PathItem: route.item, Method: methodOf(r), Operation: op},
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true, MultiError: true,
			ExcludeReadOnlyValidations: true, ExcludeRequestBody: x.Sent == nil, SkipSettingDefaults: true},
	}
	if x.Status < 300 {
		err = disagreement(openapi3filter.ValidateRequest(r.Context(), input), "%s %s is answered, and no request of the document: %s", r.Method, r.URL, x.Sent)
	}
	switch {
	case r.Method == http.MethodHead:
	case isStream(x.Header):
		err = errors.Join(err, d.holdStream(r, op, x.Body))
	default:
		output := &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: x.Status, Header: x.Header, Options: input.Options,
			Body: io.NopCloser(bytes.NewReader(x.Body))}
		err = errors.Join(err, disagreement(openapi3filter.ValidateResponse(r.Context(), output), "%s %s: no answer of the document: %d %s", r.Method, r.URL, x.Status, x.Body))
	}
	return op.OperationID, request, err
}

// holdUndescribed: what the document does not describe is refused, in the shape
// of its path.
func (d *Document) holdUndescribed(x Exchange) error {
	switch r := x.Request; {
	case outside(r) || r.Method == http.MethodHead:
		return nil
	case x.Status < 400:
		return fmt.Errorf("%s %s is answered and not described", r.Method, r.URL)
	case isInference(r):
		return d.fits("InferenceError", x.Body)
	}
	return d.fits("ManagementError", x.Body)
}

func isStream(h http.Header) bool {
	return strings.HasPrefix(h.Get("Content-Type"), "text/event-stream")
}

// holdStream holds every piece of a stream against the type that it is of.
func (d *Document) holdStream(r *http.Request, op *openapi3.Operation, stream []byte) error {
	of, err := streamOf(r, op)
	for line := range bytes.Lines(stream) {
		err = errors.Join(err, d.holdLine(of, line))
	}
	return err
}

// streamOf is the schema of the data of an operation's streams.
func streamOf(r *http.Request, op *openapi3.Operation) (*openapi3.Schema, error) {
	media := op.Responses.Value("200").Value.Content["text/event-stream"]
	if media == nil || media.Schema.Value.ContentSchema == nil {
		return nil, fmt.Errorf("%s sends a stream and does not say so", r.URL)
	}
	return media.Schema.Value.ContentSchema.Value, nil
}

// holdLine holds one line of a stream against the type that its data is of.
func (d *Document) holdLine(of *openapi3.Schema, line []byte) error {
	data, isData := bytes.CutPrefix(bytes.TrimRight(line, "\r\n"), []byte("data: "))
	switch {
	case !isData || of == nil || string(data) == "[DONE]":
		return nil
	case bytes.HasPrefix(data, []byte(`{"error":`)):
		return d.fits("InferenceError", data)
	}
	return fits(of, "piece of the stream", data)
}

// fits says where JSON is not of a component of the document.
func (d *Document) fits(component string, data []byte) error {
	return fits(d.Components.Schemas[component].Value, component, data)
}

func fits(of *openapi3.Schema, what string, data []byte) error {
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return fmt.Errorf("no %s: %s: %w", what, data, err)
	}
	return disagreement(of.VisitJSON(value, openapi3.EnableJSONSchema2020(), openapi3.MultiErrors()), "no %s: %s", what, data)
}

// disagreement tells the reasons of an error, and not the whole schemas.
func disagreement(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	var reasons []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line == "Schema:" {
			break
		}
		reasons = append(reasons, line)
	}
	return fmt.Errorf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(reasons, "\n"))
}

// asDescribed is a request's body as the document describes it: the introduction
// says that null is as good as nothing, and that names may be in snake_case.
func asDescribed(r *http.Request, sent []byte) ([]byte, error) {
	var tree any
	if len(sent) == 0 || json.Unmarshal(sent, &tree) != nil { // the server says so as well
		return nil, nil
	}
	return json.Marshal(tidied(tree, !isInference(r)))
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
var verbatim = map[string]bool{"loadTargets": true, "fileContents": true, "filenameToSize": true, "accelerators": true}

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

// withoutEmpty is a query without values that are as good as left out.
func withoutEmpty(query url.Values) url.Values {
	out := url.Values{}
	for name, values := range query {
		if values[0] != "" {
			out[camel(name)] = append(out[camel(name)], values...)
		}
	}
	return out
}

func camel(name string) string {
	parts := strings.Split(name, "_")
	for i, part := range parts[1:] {
		if part != "" {
			parts[i+1] = strings.ToUpper(part[:1]) + part[1:]
		}
	}
	return strings.Join(parts, "")
}
