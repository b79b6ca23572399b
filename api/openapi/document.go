package openapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
)

// A Document builds the OpenAPI 3.1 document of the API. The first call of Bytes renders it.
type Document struct {
	table   []request.Operation
	docs    Documentation
	samples map[int]*domain.Error

	once sync.Once
	data []byte
	etag string
}

// New returns a Document without operations: see Describe. samples are errors by HTTP status that
// the document shows as examples, in addition to errorSamples. docs describes the wire types of all
// packages.
func New(samples map[int]*domain.Error, docs ...Documentation) *Document {
	all := maps.Clone(errorSamples)
	maps.Copy(all, samples)
	return &Document{docs: merge(append(docs, ownDocumentation)), samples: all}
}

// Describe sets the operations that the document describes. It must be called before the first call
// of Bytes.
func (d *Document) Describe(table []request.Operation) { d.table = table }

// Bytes returns the document as JSON, and its ETag. It panics if the document cannot be encoded;
// any test that reads the document finds such a bug.
func (d *Document) Bytes() (data []byte, etag string) {
	d.once.Do(func() {
		data, err := d.render()
		if err != nil {
			panic(err)
		}
		d.data, d.etag = data, ETagOf(data)
	})
	return d.data, d.etag
}

func (d *Document) serve(c *request.Call) (any, error) {
	data, etag := d.Bytes()
	ServePublic(c, "application/json", data, etag)
	return nil, nil
}

// ServePublic responds with a document that needs no API key, and that web pages of all origins may
// read.
func ServePublic(c *request.Call, media string, data []byte, etag string) {
	h := c.Writer.Header()
	h.Set("Content-Type", media)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "public, max-age=300")
	h.Set("ETag", etag)
	h.Set("Access-Control-Allow-Origin", "*")
	http.ServeContent(c.Writer, c.Request, "", time.Time{}, bytes.NewReader(data))
}

// ETagOf returns the ETag of a document: its SHA-256 in quotes.
func ETagOf(data []byte) string { return fmt.Sprintf(`"%x"`, sha256.Sum256(data)) }

func (doc *Document) render() ([]byte, error) {
	d := &describer{schemas: newSchemas(doc.table, doc.docs), samples: doc.samples, examples: map[string][]Example{}}
	var examples []Example
	if err := json.Unmarshal(ExamplesJSON, &examples); err != nil {
		return nil, err
	}
	for _, one := range examples {
		d.examples[one.Operation] = append(d.examples[one.Operation], one)
	}
	paths := map[string]map[string]any{}
	for i := range doc.table {
		op := &doc.table[i]
		if op.Hidden {
			continue
		}
		if paths[op.Path] == nil {
			paths[op.Path] = map[string]any{}
		}
		paths[op.Path][strings.ToLower(op.Method)] = d.operation(op)
	}
	var groups []any
	for _, tag := range tags {
		groups = append(groups, map[string]any{"name": tag.name, "description": tag.description})
	}
	return json.Marshal(map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{"title": "anneal", "version": APIVersion,
			"summary":     "Train, deploy and serve models.",
			"description": introduction,
			"contact":     map[string]any{"name": "Operator of this installation"},
			"license":     map[string]any{"name": "Apache-2.0", "identifier": "Apache-2.0"}},
		"servers":  []any{map[string]any{"url": "/", "description": "Installation that serves this document."}},
		"security": []any{map[string]any{"apiKey": []string{}}},
		"tags":     groups,
		"paths":    paths,
		"components": map[string]any{
			"schemas": d.allSchemas(),
			"parameters": map[string]any{"IdempotencyKey": request.IdempotencyParameter,
				"Priority": priorityParameter, "Ticket": ticketParameter,
				"MinPosition": minPositionParameter, "RequestId": requestIDParameter,
				"TraceParent": traceParentParameter, "TraceState": traceStateParameter},
			"headers":   responseHeaders,
			"responses": d.errorResponses(),
			"securitySchemes": map[string]any{"apiKey": map[string]any{"type": "http", "scheme": "bearer",
				"description": "API key of an account: ank_ACCOUNT_KEYID_ followed by 72 hexadecimal digits."}},
		},
	})
}

// minPositionParameter describes the request header anneal-at-least: the position that the response
// must reflect at least.
var minPositionParameter = map[string]any{"name": request.MinPositionParameter.Name, "in": "header",
	"description": request.MinPositionParameter.Description,
	"schema":      wire.Schema{"type": "string"}, "example": samplePosition}

// priorityParameter and ticketParameter describe the headers of inference requests that concern the
// admission queue of a deployment.
var (
	priorityParameter = map[string]any{"name": request.PriorityHeader, "in": "header",
		"description": "Class of the request: while requests of both wait for a deployment, interactive ones get nine " +
			"times as many tokens as batch ones. The default is interactive.",
		"schema": wire.Schema{"type": "string", "enum": []string{"interactive", "batch"}}, "example": "batch"}
	ticketParameter = map[string]any{"name": request.TicketHeader, "in": "header",
		"description": "The header of an earlier response with 429: a request that is sent again after Retry-After with " +
			"its ticket is admitted. An invalid or expired ticket is ignored.",
		"schema": wire.Schema{"type": "string"}, "example": sampleTicket}
)

// requestIDParameter describes the header X-Request-Id.
var requestIDParameter = map[string]any{"name": request.RequestIDHeader, "in": "header",
	"description": "ID of the request, of letters, digits, -, _ and dots. By default, the server generates a UUID.",
	"schema":      wire.Schema{"type": "string"}, "example": "support-backend-20260302-4182"}

// traceParentParameter and traceStateParameter describe the headers of W3C Trace Context.
var (
	traceParentParameter = map[string]any{"name": request.TraceParentHeader, "in": "header",
		"description": "W3C trace context, which is copied to the events that the request records. An invalid " +
			"trace context is ignored.",
		"schema": wire.Schema{"type": "string"}, "example": sampleTrace}
	traceStateParameter = map[string]any{"name": request.TraceStateHeader, "in": "header",
		"description": "W3C trace state of at most 512 bytes, which is copied to the events that the request records.",
		"schema":      wire.Schema{"type": "string"}, "example": "vendor=t61rcWkgMzE"}
)

const sampleTrace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// A describer builds one OpenAPI document from the operations.
type describer struct {
	*schemas
	samples  map[int]*domain.Error
	examples map[string][]Example // recorded examples by operation ID
}

// allSchemas returns the schemas of all types in requests, responses and errors, by the name of
// their component.
func (d *describer) allSchemas() map[string]wire.Schema {
	d.of(reflect.TypeFor[request.ManagementError]())
	d.of(reflect.TypeFor[request.ErrorInfo]())
	d.of(reflect.TypeFor[request.BadRequest]())
	d.of(reflect.TypeFor[request.InferenceError]())
	return d.byName
}

func (d *describer) operation(op *request.Operation) map[string]any {
	out := map[string]any{
		"operationId": op.ID, "summary": op.Summary,
		"description": strings.TrimSpace(op.Description + " " + authorization(op)),
		"tags":        []string{op.Tag},
		"parameters":  d.parameters(op), "responses": d.responses(op),
	}
	if op.Gate == request.Everyone {
		out["security"] = []any{}
	}
	if body := d.requestBody(op); body != nil {
		out["requestBody"] = body
	}
	return out
}

const operatorOnly = "Authorization: an API key of the operator."

// authorization returns a sentence that says which API keys may use an operation.
func authorization(op *request.Operation) string {
	describe := func(permission request.Permission) string {
		var allowed []string
		for _, role := range domain.Roles {
			if slices.Contains(request.Granted[role], permission) {
				allowed = append(allowed, role)
			}
		}
		if len(allowed) == 0 {
			return operatorOnly
		}
		return "Authorization: an API key of the account with the role " + strings.Join(allowed, " or ") +
			", or of the operator."
	}
	switch op.Gate {
	case request.InAccount, request.InOwnAccount:
		return describe(op.Permission)
	case request.ByOperator:
		return operatorOnly
	case request.ToModels:
		allowed := slices.DeleteFunc(slices.Clone(domain.Roles),
			func(role string) bool { return !slices.Contains(request.Granted[role], request.Infer) })
		return "Authorization: an API key with the role " + strings.Join(allowed, " or ") + "."
	case request.WithKey:
		if op.Permission == request.Read && op.ID == "getDigest" {
			return "Authorization: an API key of the account default with the role admin, or of the operator."
		}
		if op.ID == "getCaller" {
			return "Authorization: every API key or login."
		}
		return describe(op.Permission) + " For a public resource, every API key is sufficient."
	}
	return "Authorization: none."
}

var pathVariable = regexp.MustCompile(`\{([a-z]+)\}`)

var pathTexts = map[string]string{
	"account":    "ID of the account.",
	"id":         "ID of the resource, the last part of its name.",
	"version":    "ID of the version, the last part of its name.",
	"checkpoint": "ID of the checkpoint, the last part of its name.",
	"schema":     "Event type followed by .json, such as dataset.created.v1.json.",
	"model":      "Name of the model. Its slashes may be encoded as %2F.",
	"position":   "Position of the event in the log.",
	"path":       "Path of the tile or entry bundle, as C2SP's tlog-tiles defines it. Its slashes may be encoded as %2F.",
}

const idPattern = "^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$"

// pathPatterns has the regular expressions of path parameters that are not resource IDs; "" means
// that every value is allowed.
var pathPatterns = map[string]string{"version": "", "schema": "", "checkpoint": "^[0-9]+-[0-9]+$",
	"position": "^[0-9]+$"}

func (d *describer) parameters(op *request.Operation) []any {
	list := []any{}
	for _, found := range pathVariable.FindAllStringSubmatch(op.Path, -1) {
		of := wire.Schema{"type": "string"}
		one := map[string]any{"name": found[1], "in": "path", "required": true, "description": pathTexts[found[1]],
			"schema": of}
		pattern, other := pathPatterns[found[1]]
		if !other {
			pattern = idPattern
		}
		switch {
		case op.Slashes:
			one["x-slashes"] = true
		case pattern != "":
			of["pattern"] = pattern
		}
		d.addExamples(op, one, request.Parameter{Name: found[1], Kind: wire.Text}, "path")
		list = append(list, one)
	}
	for _, p := range op.Query {
		p.Description = join(p.Description, inertParameter(op, p.Name))
		list = append(list, d.exampleParameter(op, p, "query"))
	}
	for _, p := range op.Headers {
		list = append(list, d.exampleParameter(op, p, "header"))
	}
	if op.Repeatable() {
		list = append(list, map[string]any{"$ref": "#/components/parameters/IdempotencyKey"})
	}
	if op.IsInference() && op.Method == http.MethodPost {
		list = append(list, map[string]any{"$ref": "#/components/parameters/Priority"},
			map[string]any{"$ref": "#/components/parameters/Ticket"})
	}
	if op.Gate != request.Everyone {
		list = append(list, map[string]any{"$ref": "#/components/parameters/MinPosition"})
	}
	for _, name := range []string{"RequestId", "TraceParent", "TraceState"} {
		list = append(list, map[string]any{"$ref": "#/components/parameters/" + name})
	}
	return list
}

// exampleParameter returns the Parameter Object of an operation's parameter, with examples. in is
// the location of the parameter: query, path or header.
func (d *describer) exampleParameter(op *request.Operation, p request.Parameter, in string) map[string]any {
	out := d.parameter(p, in)
	d.addExamples(op, out, p, in)
	return out
}

func (d *describer) parameter(p request.Parameter, in string) map[string]any {
	of := wire.Schema{"type": "string"}
	out := map[string]any{"name": p.Name, "in": in, "description": p.Description, "schema": of}
	switch p.Kind {
	case wire.Bool:
		of["type"], of["default"] = "boolean", false
	case wire.Int:
		of["type"], of["format"], of["minimum"] = "integer", "int32", 0
	case wire.List:
		of["type"], of["items"] = "array", wire.Schema{"type": "string"}
		out["style"], out["explode"] = "form", false
	case wire.Map:
		of["type"], of["additionalProperties"] = "object", wire.Schema{"type": "string"}
		out["style"], out["explode"] = "deepObject", true
	}
	return out
}

func (d *describer) requestBody(op *request.Operation) map[string]any {
	switch {
	case op.Form != nil:
		media := map[string]any{"schema": d.of(op.Form)}
		d.addBodies(op, media)
		return map[string]any{"required": true, "description": formText,
			"content": map[string]any{"multipart/form-data": media}}
	case op.Body == nil || op.Body == request.NoBody:
		return nil
	}
	media := map[string]any{"schema": d.bodySchema(op)}
	d.addBodies(op, media)
	return map[string]any{"required": !op.BodyOptional, "content": map[string]any{"application/json": media}}
}

// formText is the description of multipart/form-data bodies.
const formText = "A form with a file. In the examples, the value @NAME means the content of the file NAME, as in " +
	"curl -F."

// addBodies adds the examples of an operation's request body to the Media Type Object media.
func (d *describer) addBodies(op *request.Operation, media map[string]any) {
	var examples shownExamples
	for _, e := range d.examples[op.ID] {
		if e.Request != nil {
			examples = append(examples, shownExample{e.Key(), e.Summary, e.Request, e.Files})
		}
	}
	if len(examples) > 0 {
		media["examples"] = examples
	}
}

// bodySchema returns the schema of an operation's request body, in which the fields in the
// operation's Required are required.
func (d *describer) bodySchema(op *request.Operation) wire.Schema {
	of := d.typed(op.Body, wire.Capitalize(op.ID)+"Request")
	if len(op.Required) == 0 {
		return of
	}
	return wire.Schema{"allOf": []any{of, wire.Schema{"type": "object", "required": op.Required}}}
}

// typed returns the schema of a type. If the type is an unnamed struct, its schema component gets
// the name.
func (d *describer) typed(t reflect.Type, name string) wire.Schema {
	if t.Kind() != reflect.Struct || t.Name() != "" || t.NumField() == 0 {
		return d.of(t)
	}
	if items := t.Field(0).Type; items.Kind() == reflect.Slice {
		name = ComponentName(items.Elem()) + "Page"
	}
	return d.named(t, name)
}

func (d *describer) responses(op *request.Operation) map[string]any {
	headers := headersOfAll()
	if op.Repeatable() {
		headers[request.ReplayedHeader] = map[string]any{"$ref": "#/components/headers/Replayed"}
	}
	if op.HasPosition() {
		headers[request.PositionHeader] = map[string]any{"$ref": "#/components/headers/Position"}
		headers[request.StaleHeader] = map[string]any{"$ref": "#/components/headers/Stale"}
	}
	for _, p := range op.ResponseHeaders {
		headers[p.Name] = map[string]any{"description": p.Description, "schema": d.parameter(p, "header")["schema"]}
	}
	content := map[string]map[string]any{}
	switch {
	case strings.HasSuffix(op.Media, "json"):
		content[op.Media] = map[string]any{"schema": wire.Schema{"type": "object"}}
	case op.Media != "":
		content[op.Media] = map[string]any{"schema": wire.Schema{"type": "string"}}
	case op.Response != nil:
		media := map[string]any{"schema": d.typed(op.Response, wire.Capitalize(op.ID)+"Response")}
		if op.AltResponse != nil {
			media["schema"] = wire.Schema{"anyOf": []any{media["schema"], d.of(op.AltResponse)}}
		}
		content["application/json"] = media
	}
	for _, text := range op.TextMedia {
		content[text] = map[string]any{"schema": wire.Schema{"type": "string"}}
	}
	if op.Streamed != nil {
		content["text/event-stream"] = map[string]any{"schema": wire.Schema{"type": "string",
			"contentMediaType": "application/json", "contentSchema": d.of(op.Streamed),
			"description": "Server-sent events. The data of each event is a " + ComponentName(op.Streamed) + "."}}
	}
	for media, described := range content {
		examples := d.examplesOf(op, func(e Example) (any, bool) { return e.Response, e.Media == media })
		if len(examples) > 0 {
			described["examples"] = examples
		}
	}
	all := map[string]any{"200": map[string]any{"description": "Success.",
		"headers": headers, "content": content}}
	for _, status := range errorStatuses(op) {
		all[strconv.Itoa(status)] = map[string]any{"$ref": "#/components/responses/" +
			responseName(status, op.HasInferenceErrors())}
	}
	return all
}

// errorStatuses returns the HTTP statuses of the errors that the document lists for an operation.
func errorStatuses(op *request.Operation) []int {
	if op.Gate == request.Everyone {
		all := []int{http.StatusRequestHeaderFieldsTooLarge, http.StatusInternalServerError, http.StatusServiceUnavailable}
		if pathVariable.MatchString(op.Path) {
			all = append(all, http.StatusNotFound)
		}
		return all
	}
	all := []int{400, 401, 403, 404, 409, 429, 500, 501, 503, 504}
	if op.Body != nil || op.Form != nil {
		all = append(all, http.StatusRequestEntityTooLarge)
	}
	if op.HasInferenceErrors() {
		all = append(all, http.StatusPreconditionFailed)
	}
	return all
}
