// Package described checks in tests that HTTP requests and responses match the OpenAPI document
// that the server serves.
package described

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
)

func init() {
	for _, text := range []string{"text/html", "text/vtt", "application/x-subrip"} {
		openapi3filter.RegisterBodyDecoder(text, openapi3filter.RegisteredBodyDecoder("text/plain"))
	}
}

// A Document is the parsed OpenAPI document of a server.
type Document struct {
	*openapi3.T
	routes []route
}

// A route is a path of the OpenAPI document, as a regular expression.
type route struct {
	path    string
	pattern *regexp.Regexp
	names   []string // names of the path parameters that the groups of the pattern match
	item    *openapi3.PathItem
}

// extensible lists the schemas of request bodies to which a caller may add unknown fields, which
// the server ignores with a warning.
var extensible = []string{"CompletionBody", "ChatBody", "ChatMessage", "EmbeddingBody", "ResponseBody"}

var placeholder = regexp.MustCompile(`\\\{(\w+)\\\}`)

// Read parses an OpenAPI document. It forbids additional properties in every object of a response:
// clients must ignore unknown fields, but tests must find undocumented ones.
func Read(data []byte) (*Document, error) {
	doc, err := openapi3.NewLoader().LoadFromData(data)
	if err != nil {
		return nil, fmt.Errorf("described: %w", err)
	}
	closed := false
	for name, component := range doc.Components.Schemas {
		if len(component.Value.Properties) > 0 && !slices.Contains(extensible, name) {
			component.Value.AdditionalProperties = openapi3.AdditionalProperties{Has: &closed}
		}
	}
	d := &Document{T: doc}
	for path, item := range doc.Paths.Map() {
		one := route{path: path, item: item}
		quoted := regexp.QuoteMeta(path)
		for _, found := range placeholder.FindAllStringSubmatch(quoted, -1) {
			one.names = append(one.names, found[1])
			// a colon separates a path parameter from a custom verb, so the parameter cannot
			// contain a colon
			of := `([^/:]+)`
			if hasSlashes(item, found[1]) {
				of = `(.+)`
			}
			quoted = strings.Replace(quoted, found[0], of, 1)
		}
		one.pattern = regexp.MustCompile("^" + quoted + "$")
		d.routes = append(d.routes, one)
	}
	return d, nil
}

// hasSlashes reports whether the values of a path parameter may contain slashes.
func hasSlashes(item *openapi3.PathItem, parameter string) bool {
	for _, op := range item.Operations() {
		if p := op.Parameters.GetByInAndName("path", parameter); p != nil && p.Extensions["x-slashes"] == true {
			return true
		}
	}
	return false
}

// find returns the route of a request, the values of its path parameters by name, and its
// operation. All three are nil if the document does not describe the request.
func (d *Document) find(r *http.Request) (*route, map[string]string, *openapi3.Operation) {
	for i := range d.routes {
		one := &d.routes[i]
		found := one.pattern.FindStringSubmatch(r.URL.Path)
		if found == nil || one.item.GetOperation(methodOf(r)) == nil {
			continue
		}
		values := map[string]string{}
		for n, name := range one.names {
			values[name] = found[n+1]
		}
		return one, values, one.item.GetOperation(methodOf(r))
	}
	return nil, nil, nil
}

// methodOf returns the method of the operation that describes a request: GET for a HEAD request.
func methodOf(r *http.Request) string {
	if r.Method == http.MethodHead {
		return http.MethodGet
	}
	return r.Method
}

// nearestIsInference reports whether an error for a path that the document does not describe must
// be an InferenceError. It applies the rules of the server (see api.errorFormats) to the document:
// a path has the format of the paths with which it shares the longest prefix; if those have both
// formats, only errors below /v1 are an InferenceError. The error for a path of the OpenAI API with
// a wrong base URL, which lacks /v1 or has it twice, is an InferenceError too.
func (d *Document) nearestIsInference(path string) bool {
	if item := d.Paths.Value("/v1/" + strings.Trim(strings.TrimPrefix(path, "/v1/v1"), "/")); item != nil {
		inference := true
		for _, op := range item.Operations() {
			inference = inference && isInference(op)
		}
		if inference {
			return true
		}
	}
	segments := strings.Split(strings.TrimRight(path, "/"), "/")
	for n := len(segments); n > 0; n-- {
		prefix, formats := strings.Join(segments[:n], "/"), map[bool]bool{}
		for described, item := range d.Paths.Map() {
			for _, op := range item.Operations() {
				if described == prefix || strings.HasPrefix(described, prefix+"/") {
					formats[isInference(op)] = true
				}
			}
		}
		if len(formats) > 0 {
			return formats[true] && (!formats[false] || prefix == "/v1")
		}
	}
	return false
}

// isInference reports whether the errors of an operation are an InferenceError.
func isInference(op *openapi3.Operation) bool {
	refused := op.Responses.Value("401")
	return refused != nil && strings.HasPrefix(refused.Ref, "#/components/responses/Inference")
}

// outside reports whether a request is for a signed URL or a documentation page, which the OpenAPI
// document does not describe.
func outside(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/blobs/") || strings.HasPrefix(r.URL.Path, "/docs/") ||
		strings.HasPrefix(r.URL.Path, "/console/") || r.URL.Path == "/"
}
