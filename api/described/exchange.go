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

// An Exchange is a request and its complete response.
type Exchange struct {
	Request *http.Request // its Body was read already: see Sent
	Sent    []byte        // JSON body of the request; nil if the request has a form or no body
	Status  int
	Header  http.Header
	Body    []byte
}

// OperationID returns the ID of the operation of a request, or "" if the document does not describe
// the request.
func (d *Document) OperationID(r *http.Request) string {
	if _, _, op := d.find(r); op != nil {
		return op.OperationID
	}
	return ""
}

// ValidateExchange returns an error if the response does not match the document, or if the server
// accepted a request that does not match it.
func (d *Document) ValidateExchange(x Exchange) error {
	r := x.Request
	route, values, op := d.find(r)
	if op == nil {
		return d.validateUndescribed(x)
	}
	request, err := asDescribed(op, x.Sent)
	if err != nil {
		return err
	}
	input := &openapi3filter.RequestValidationInput{
		Request: withBody(r, request), PathParams: values, QueryParams: withoutEmpty(r.URL.Query()),
		Route: &routers.Route{Spec: d.T, Path: route.path, PathItem: route.item, Method: methodOf(r), Operation: op},
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc,
			IncludeResponseStatus: true, MultiError: true,
			ExcludeReadOnlyValidations: true, ExcludeRequestBody: x.Sent == nil, SkipSettingDefaults: true},
	}
	if x.Status < 300 {
		err = mismatch(openapi3filter.ValidateRequest(r.Context(), input),
			"%s %s: the server accepted a request that does not match the OpenAPI document: %s", r.Method, r.URL, x.Sent)
	}
	switch {
	case r.Method == http.MethodHead:
	case isStream(x.Header):
		err = errors.Join(err, d.validateStream(r, op, x.Body))
	default:
		output := &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: x.Status, Header: x.Header,
			Options: input.Options,
			Body:    io.NopCloser(bytes.NewReader(x.Body))}
		err = errors.Join(err, mismatch(openapi3filter.ValidateResponse(r.Context(), output),
			"%s %s: the response does not match the OpenAPI document: status %d, body %s", r.Method, r.URL, x.Status, x.Body))
	}
	return err
}

// validateUndescribed returns an error unless the server rejected a request that the document does
// not describe, with an error in the format of the request's path. It does not check HEAD and
// OPTIONS requests, signed URLs and documentation pages.
func (d *Document) validateUndescribed(x Exchange) error {
	switch r := x.Request; {
	case outside(r) || r.Method == http.MethodHead || r.Method == http.MethodOptions:
		return nil
	case x.Status < 400:
		return fmt.Errorf("%s %s: the server accepted a request that the OpenAPI document does not describe", r.Method, r.URL)
	case d.nearestIsInference(r.URL.Path):
		return d.validate("InferenceError", x.Body)
	}
	return d.validate("ManagementError", x.Body)
}

func isStream(h http.Header) bool {
	return strings.HasPrefix(h.Get("Content-Type"), "text/event-stream")
}

// validateStream validates each event of a stream against the schema that the document declares for
// the events of the operation.
func (d *Document) validateStream(r *http.Request, op *openapi3.Operation, stream []byte) error {
	schema, err := streamOf(r, op)
	for line := range bytes.Lines(stream) {
		err = errors.Join(err, d.validateLine(schema, line))
	}
	return err
}

// streamOf returns the schema of the data of an operation's events, or an error if the document
// declares no stream for the operation.
func streamOf(r *http.Request, op *openapi3.Operation) (*openapi3.Schema, error) {
	media := op.Responses.Value("200").Value.Content["text/event-stream"]
	if media == nil || media.Schema.Value.ContentSchema == nil {
		return nil, fmt.Errorf("%s responds with an event stream, but the OpenAPI document declares no stream for it", r.URL)
	}
	return media.Schema.Value.ContentSchema.Value, nil
}

// validateLine validates one line of a stream of server-sent events. The data of an event must
// match the schema, or be an InferenceError or [DONE]. Other lines are valid.
func (d *Document) validateLine(schema *openapi3.Schema, line []byte) error {
	data, isData := bytes.CutPrefix(bytes.TrimRight(line, "\r\n"), []byte("data: "))
	switch {
	case !isData || schema == nil || string(data) == "[DONE]":
		return nil
	case bytes.HasPrefix(data, []byte(`{"error":`)):
		return d.validate("InferenceError", data)
	}
	return validate(schema, "event of the stream", data)
}

// validate returns an error unless JSON data matches a schema of the document, whose name is
// component.
func (d *Document) validate(component string, data []byte) error {
	return validate(d.Components.Schemas[component].Value, component, data)
}

func validate(of *openapi3.Schema, what string, data []byte) error {
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return fmt.Errorf("not a valid %s: %s: %w", what, data, err)
	}
	return mismatch(of.VisitJSON(value, openapi3.EnableJSONSchema2020(), openapi3.MultiErrors()), "not a valid %s: %s",
		what,
		data)
}

// mismatch returns an error with the formatted message and the reasons in err, but without the
// schemas that err contains. It returns nil if err is nil.
func mismatch(err error, format string, args ...any) error {
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

// asDescribed returns the body of a request without null values and with field names in
// lowerCamelCase, as the document's schemas have them: the document's introduction states that null
// means absent and that names may be in snake_case. It returns nil for a body that is empty or not
// JSON.
func asDescribed(op *openapi3.Operation, sent []byte) ([]byte, error) {
	var tree any
	if len(sent) == 0 || json.Unmarshal(sent, &tree) != nil { // the server rejects a body that is not JSON
		return nil, nil
	}
	return json.Marshal(normalized(tree, !isInference(op)))
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

// verbatim lists the fields whose values are maps with keys of the caller's choice, which are not
// field names.
var verbatim = map[string]bool{"loadTargets": true, "fileContents": true, "filenameToSize": true, "accelerators": true}

func normalized(value any, camelCase bool) any {
	object, ok := value.(map[string]any)
	if !ok {
		if list, isList := value.([]any); isList {
			for i := range list {
				list[i] = normalized(list[i], camelCase)
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
			out[name] = normalized(inner, camelCase && !verbatim[name])
		}
	}
	return out
}

// withoutEmpty returns a query without its empty values, because the server treats them as absent.
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
