// Package described holds exchanges with a server against the OpenAPI document
// that it serves. It is for tests alone.
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

// A Document is what a server says of itself.
type Document struct {
	*openapi3.T
	routes []route
}

// A route is one path of the document.
type route struct {
	path    string
	pattern *regexp.Regexp
	names   []string // of the pattern's groups
	item    *openapi3.PathItem
}

// growing are the components to which a caller may add fields that the server
// warns of.
var growing = []string{"CompletionBody", "ChatBody", "ChatMessage"}

var placeholder = regexp.MustCompile(`\\\{(\w+)\\\}`)

// Read reads a document. Clients may meet fields in answers that they do not
// know; here all are known.
func Read(data []byte) (*Document, error) {
	doc, err := openapi3.NewLoader().LoadFromData(data)
	if err != nil {
		return nil, fmt.Errorf("described: %w", err)
	}
	closed := false
	for name, component := range doc.Components.Schemas {
		if len(component.Value.Properties) > 0 && !slices.Contains(growing, name) {
			component.Value.AdditionalProperties = openapi3.AdditionalProperties{Has: &closed}
		}
	}
	d := &Document{T: doc}
	for path, item := range doc.Paths.Map() {
		one := route{path: path, item: item}
		quoted := regexp.QuoteMeta(path)
		for _, found := range placeholder.FindAllStringSubmatch(quoted, -1) {
			one.names = append(one.names, found[1])
		}
		one.pattern = regexp.MustCompile("^" + placeholder.ReplaceAllString(quoted, `([^/:]+)`) + "$") // a colon begins a verb
		d.routes = append(d.routes, one)
	}
	return d, nil
}

// find is the operation that a request asks for; nil when the document has none.
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

// methodOf is the method by which the document knows the request.
func methodOf(r *http.Request) string {
	if r.Method == http.MethodHead {
		return http.MethodGet
	}
	return r.Method
}

// isInference tells whether errors on the path have the inference shape.
func isInference(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/inference/") || strings.HasPrefix(r.URL.Path, "/v1/audio/")
}

// outside tells whether the path is none of the interface: signed URLs lead to
// files, and the documentation is for people.
func outside(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/blobs/") || strings.HasPrefix(r.URL.Path, "/docs/") || r.URL.Path == "/"
}
