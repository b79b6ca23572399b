package api

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"fmt"
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

// interfaceVersion is that of the interface, which the description carries.
const interfaceVersion = "1.0.0"

// tags are the groups of operations, in the order in which a newcomer needs them.
var tags = []struct{ name, about string }{
	{"accounts", "Who owns what. An account is made and suspended by the operator."},
	{"apiKeys", "Keys with which programs identify themselves. The text of a key is shown once."},
	{"secrets", "Credentials of third parties that jobs and evaluators use. A value that was given is never shown again."},
	{"datasets", "Rows to train on and to evaluate with."},
	{"evaluators", "Code that scores answers."},
	{"supervisedFineTuningJobs", "Jobs that teach a model from examples."},
	{"dpoJobs", "Jobs that teach a model which of two answers is preferred."},
	{"reinforcementFineTuningJobs", "Jobs that teach a model to answer so that an evaluator scores it better."},
	{"rlorTrainerJobs", "Jobs that learn from answers that were scored elsewhere."},
	{"models", "What jobs make, and what deployments serve."},
	{"deploymentShapes", "Sets of hardware and serving settings, in versions that reviewers validate."},
	{"deployments", "Models that answer requests."},
	{"deployedModels", "Addons (LoRA) that are loaded into a deployment of their base model."},
	{"inference", "Asking models. Names of fields are in snake_case here."},
	{"events", "The log: what happened to everything, in order, as CloudEvents."},
	{"quotas", "What an account may have at most, set by the operator."},
	{"nodes", "The machines that work. They belong to the account system, which is the operator's."},
	{"system", "How the server is. No key is needed."},
}

const introduction = `Anneal trains, deploys and serves models. Every change of a state is an event, and the events can be read and followed.

**Names.** A resource is named accounts/ACCOUNT/COLLECTION/ID. Its path is its name behind /v1/.

**JSON.** Names of fields are in lowerCamelCase in answers; requests may use snake_case as well. In requests null is as good as leaving a field out, what only the server sets is ignored, and an unknown field is refused. Counts of 64 bits are decimal strings in answers. Times are RFC 3339 in UTC. A readMask answers a part of a resource.

**Refusals** name every field that is wrong, the rule, and the way out.

**Keys.** Send the header Authorization: Bearer API_KEY.

**Repeated requests.** A POST or PATCH with an Idempotency-Key happens once: for 24 hours the same request with the same key gets the same answer, with Idempotent-Replayed, and another request with that key is refused with 409. After a 429 or a status of 500 or more the request may simply be sent again. Streams do not take the header. When as many answers are kept for an account as there may be, a new key is refused with 429, TOO_MANY_IDEMPOTENCY_KEYS and Retry-After. For a day after the server lost records of keys to damage, a key that it does not know is refused with 503 and IDEMPOTENCY_RECORDS_LOST, because its request may have been carried out: look whether it was, and send it without a key, or when the day is over.

**Limits.** The answers to an account whose requests a minute are bounded carry X-RateLimit-Limit-Requests, X-RateLimit-Remaining-Requests and X-RateLimit-Reset-Requests (a duration, such as 1m30s). A 429 names the quota and carries Retry-After, in seconds. An upload that exceeds the quota storage-bytes is refused with 429 and QUOTA_EXCEEDED, and a PUT to a signed URL with 507. Files that are PUT and not validated within 7 days are deleted.

**Request IDs.** Every answer carries X-Request-Id: the client's own, when it sent a plain one of at most 128 characters.`

//go:embed openapi_examples.json
var examplesJSON []byte

// An example is a request that was answered, and its answer. The tests write
// them down from what is really sent: go test ./api -update.
type example struct {
	Path    string          `json:"path"`
	Request json.RawMessage `json:"request,omitempty"`
	Answer  json.RawMessage `json:"answer,omitempty"`
}

// A description is the document as it is served: the same bytes as long as the
// process lives, made when they are first asked for.
type description struct {
	table []request.Operation
	once  sync.Once
	data  []byte
	tag   string // of its content, for conditional requests
}

func describe(table []request.Operation) *description { return &description{table: table} }

// bytes panics when the table cannot be described: a fault of the program, found
// by the first test that asks.
func (d *description) bytes() ([]byte, string) {
	d.once.Do(func() {
		data, err := document(d.table)
		if err != nil {
			panic(err)
		}
		d.data, d.tag = data, fmt.Sprintf(`"%x"`, sha256.Sum256(data))
	})
	return d.data, d.tag
}

func openAPI(c *call) (any, error) {
	data, tag := c.server.about.bytes()
	h := c.Writer.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "public, max-age=300")
	h.Set("ETag", tag)
	h.Set("Access-Control-Allow-Origin", "*") // it is public, and tools read it in browsers
	http.ServeContent(c.Writer, c.Request, "", time.Time{}, bytes.NewReader(data))
	return nil, nil
}

// document is the description of the operations in OpenAPI 3.1.
func document(table []request.Operation) ([]byte, error) {
	d := &describer{schemas: newSchemas(table)}
	if err := json.Unmarshal(examplesJSON, &d.examples); err != nil {
		return nil, err
	}
	paths := map[string]map[string]any{}
	for i := range table {
		op := &table[i]
		if op.Hidden {
			continue
		}
		if paths[op.Path] == nil {
			paths[op.Path] = map[string]any{}
		}
		paths[op.Path][strings.ToLower(op.Method)] = d.operation(op)
	}
	var described []any
	for _, tag := range tags {
		described = append(described, map[string]any{"name": tag.name, "description": tag.about})
	}
	return json.Marshal(map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{"title": "anneal", "version": interfaceVersion, "summary": "Train, deploy and serve models.", "description": introduction,
			"contact": map[string]any{"name": "The operator of this installation"},
			"license": map[string]any{"name": "Apache-2.0", "identifier": "Apache-2.0"}},
		"servers":  []any{map[string]any{"url": "/", "description": "The installation that serves this description."}},
		"security": []any{map[string]any{"apiKey": []string{}}},
		"tags":     described,
		"paths":    paths,
		"components": map[string]any{
			"schemas":    d.allSchemas(),
			"parameters": map[string]any{"IdempotencyKey": request.IdempotencyParameter, "RequestId": d.parameter(request.Parameter{Name: request.RequestIDHeader, Kind: wire.Text, Description: "An ID for the request, of letters, digits, -, _ and dots; one is made when it is left out."}, "header")},
			"headers":    answerHeaders,
			"responses":  d.refusals(),
			"securitySchemes": map[string]any{"apiKey": map[string]any{"type": "http", "scheme": "bearer",
				"description": "A key of an account, which looks like ank_ACCOUNT_ID_ and 72 hexadecimal digits."}},
		},
	})
}

// A describer writes one document.
type describer struct {
	*schemas
	examples map[string]example
}

// allSchemas are the components, with those that only refusals have.
func (d *describer) allSchemas() map[string]wire.Schema {
	d.of(reflect.TypeFor[request.ManagementError]())
	d.of(reflect.TypeFor[request.ErrorInfo]())
	d.of(reflect.TypeFor[request.BadRequest]())
	d.of(reflect.TypeFor[request.InferenceError]())
	return d.byName
}

func (d *describer) operation(op *request.Operation) map[string]any {
	out := map[string]any{
		"operationId": op.ID, "summary": op.Summary, "description": strings.TrimSpace(op.Description + " " + whoMay(op)), "tags": []string{op.Tag},
		"parameters": d.parameters(op), "responses": d.responses(op),
	}
	if example := d.examples[op.ID]; example.Path != "" {
		out["x-example-path"] = example.Path
	}
	if op.Gate == request.Everyone {
		out["security"] = []any{}
	}
	if body := d.requestBody(op); body != nil {
		out["requestBody"] = body
	}
	return out
}

// whoMay says in words who is let through.
func whoMay(op *request.Operation) string {
	roles := func(what request.Permission) string {
		var may []string
		for _, role := range domain.Roles {
			if slices.Contains(request.Granted[role], what) {
				may = append(may, role)
			}
		}
		if len(may) == 0 {
			return "Only the operator may."
		}
		return "Keys of the account with the role " + strings.Join(may, " or ") + " may, and the operator."
	}
	switch op.Gate {
	case request.InAccount:
		return roles(op.Permission)
	case request.ByOperator:
		return "Only the operator may."
	case request.ToModels:
		may := slices.DeleteFunc(slices.Clone(domain.Roles), func(role string) bool { return !slices.Contains(request.Granted[role], request.Infer) })
		return "Keys with the role " + strings.Join(may, ", ") + " may."
	case request.WithKey:
		if op.Permission == request.Read && op.ID == "getDigest" {
			return "An admin of the account default may, and the operator."
		}
		return "Whoever has a key may see what is public. " + roles(op.Permission)
	}
	return "No key is needed."
}

var pathVariable = regexp.MustCompile(`\{([a-z]+)\}`)

var pathTexts = map[string]string{
	"account": "The ID of the account.",
	"id":      "The ID of the resource: the last part of its name.",
	"version": "The ID of the version: the last part of its name.",
}

const idPattern = "^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$"

func (d *describer) parameters(op *request.Operation) []any {
	list := []any{}
	for _, found := range pathVariable.FindAllStringSubmatch(op.Path, -1) {
		of := wire.Schema{"type": "string"}
		if found[1] != "version" {
			of["pattern"] = idPattern
		}
		list = append(list, map[string]any{"name": found[1], "in": "path", "required": true, "description": pathTexts[found[1]], "schema": of})
	}
	for _, p := range op.Query {
		list = append(list, d.parameter(p, "query"))
	}
	for _, p := range op.Headers {
		list = append(list, d.parameter(p, "header"))
	}
	if op.Repeatable() {
		list = append(list, map[string]any{"$ref": "#/components/parameters/IdempotencyKey"})
	}
	return append(list, map[string]any{"$ref": "#/components/parameters/RequestId"})
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
	}
	return out
}

func (d *describer) requestBody(op *request.Operation) map[string]any {
	switch {
	case op.Form != nil:
		of := d.of(op.Form)
		return map[string]any{"required": true, "description": "A form with the file.", "content": map[string]any{"multipart/form-data": map[string]any{"schema": of}}}
	case op.Body == nil || op.Body == request.NoBody:
		return nil
	}
	media := map[string]any{"schema": d.bodySchema(op)}
	if request := d.examples[op.ID].Request; request != nil {
		media["example"] = request
	}
	return map[string]any{"required": !op.BodyOptional, "content": map[string]any{"application/json": media}}
}

// bodySchema is that of the body's type, and what this operation requires of it.
func (d *describer) bodySchema(op *request.Operation) wire.Schema {
	of := d.typed(op.Body, wire.Capitalize(op.ID)+"Request")
	if len(op.Required) == 0 {
		return of
	}
	return wire.Schema{"allOf": []any{of, wire.Schema{"type": "object", "required": op.Required}}}
}

// typed is the schema of a type that may have no name of its own.
func (d *describer) typed(t reflect.Type, name string) wire.Schema {
	if t.Kind() != reflect.Struct || t.Name() != "" || t.NumField() == 0 {
		return d.of(t)
	}
	if items := t.Field(0).Type; items.Kind() == reflect.Slice {
		name = componentName(items.Elem()) + "Page"
	}
	return d.named(t, name)
}

func (d *describer) responses(op *request.Operation) map[string]any {
	headers := map[string]any{request.RequestIDHeader: map[string]any{"$ref": "#/components/headers/RequestId"}}
	if op.Repeatable() {
		headers[request.ReplayedHeader] = map[string]any{"$ref": "#/components/headers/Replayed"}
	}
	for _, p := range op.ResponseHeaders {
		headers[p.Name] = map[string]any{"description": p.Description, "schema": d.parameter(p, "header")["schema"]}
	}
	content := map[string]any{}
	switch {
	case op.Media == "application/json":
		content[op.Media] = map[string]any{"schema": wire.Schema{"type": "object"}}
	case op.Media != "":
		content[op.Media] = map[string]any{"schema": wire.Schema{"type": "string"}}
	case op.Response != nil:
		media := map[string]any{"schema": d.typed(op.Response, wire.Capitalize(op.ID)+"Response")}
		if answer := d.examples[op.ID].Answer; answer != nil {
			media["example"] = answer
		}
		if op.AltResponse != nil {
			media["schema"] = wire.Schema{"anyOf": []any{media["schema"], d.of(op.AltResponse)}}
		}
		content["application/json"] = media
	}
	for _, text := range op.TextMedia {
		content[text] = map[string]any{"schema": wire.Schema{"type": "string"}}
	}
	if op.Streamed != nil {
		content["text/event-stream"] = map[string]any{"schema": wire.Schema{"type": "string", "contentMediaType": "application/json", "contentSchema": d.of(op.Streamed),
			"description": "Server-sent events. The data of each is one " + componentName(op.Streamed) + "."}}
	}
	all := map[string]any{"200": map[string]any{"description": "It is done, or this is what was asked for.", "headers": headers, "content": content}}
	for _, status := range refusals(op) {
		all[strconv.Itoa(status)] = map[string]any{"$ref": "#/components/responses/" + refusalName(status, op.IsInference())}
	}
	return all
}

// refusals are the statuses other than 200 that the operation may answer.
func refusals(op *request.Operation) []int {
	if op.Gate == request.Everyone {
		return []int{http.StatusRequestHeaderFieldsTooLarge, http.StatusInternalServerError, http.StatusServiceUnavailable}
	}
	all := []int{400, 401, 403, 404, 409, 429, 500, 501, 503, 504}
	if op.Body != nil || op.Form != nil {
		all = append(all, http.StatusRequestEntityTooLarge)
	}
	if op.IsInference() {
		all = append(all, http.StatusPreconditionFailed)
	}
	return all
}
