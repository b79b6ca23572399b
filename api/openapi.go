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
	table []operation
	once  sync.Once
	data  []byte
	tag   string // of its content, for conditional requests
}

func describe(table []operation) *description { return &description{table: table} }

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
	data, tag := c.about.bytes()
	h := c.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "public, max-age=300")
	h.Set("ETag", tag)
	h.Set("Access-Control-Allow-Origin", "*") // it is public, and tools read it in browsers
	http.ServeContent(c.w, c.r, "", time.Time{}, bytes.NewReader(data))
	return nil, nil
}

// document is the description of the operations in OpenAPI 3.1.
func document(table []operation) ([]byte, error) {
	d := &describer{schemas: newSchemas(table)}
	if err := json.Unmarshal(examplesJSON, &d.examples); err != nil {
		return nil, err
	}
	paths := map[string]map[string]any{}
	for i := range table {
		op := &table[i]
		if op.unlisted {
			continue
		}
		if paths[op.path] == nil {
			paths[op.path] = map[string]any{}
		}
		paths[op.path][strings.ToLower(op.method)] = d.operation(op)
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
			"parameters": map[string]any{"IdempotencyKey": idempotencyParameter, "RequestId": d.parameter(parameter{requestIDHeader, wire.Text, "An ID for the request, of letters, digits, -, _ and dots; one is made when it is left out."}, "header")},
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
	d.of(reflect.TypeFor[managementError]())
	d.of(reflect.TypeFor[errorInfo]())
	d.of(reflect.TypeFor[badRequest]())
	d.of(reflect.TypeFor[inferenceError]())
	return d.byName
}

func (d *describer) operation(op *operation) map[string]any {
	out := map[string]any{
		"operationId": op.id, "summary": op.summary, "description": strings.TrimSpace(op.about + " " + op.whoMay()), "tags": []string{op.tag},
		"parameters": d.parameters(op), "responses": d.responses(op),
	}
	if example := d.examples[op.id]; example.Path != "" {
		out["x-example-path"] = example.Path
	}
	if op.gate == everybody {
		out["security"] = []any{}
	}
	if body := d.requestBody(op); body != nil {
		out["requestBody"] = body
	}
	return out
}

// whoMay says in words who is let through.
func (op *operation) whoMay() string {
	roles := func(what permission) string {
		var may []string
		for _, role := range domain.Roles {
			if slices.Contains(granted[role], what) {
				may = append(may, role)
			}
		}
		if len(may) == 0 {
			return "Only the operator may."
		}
		return "Keys of the account with the role " + strings.Join(may, " or ") + " may, and the operator."
	}
	switch op.gate {
	case inAccount:
		return roles(op.may)
	case byOperator:
		return "Only the operator may."
	case toModels:
		may := slices.DeleteFunc(slices.Clone(domain.Roles), func(role string) bool { return !slices.Contains(granted[role], toInfer) })
		return "Keys with the role " + strings.Join(may, ", ") + " may."
	case withKey:
		if op.may == toRead && op.id == "getDigest" {
			return "An admin of the account default may, and the operator."
		}
		return "Whoever has a key may see what is public. " + roles(op.may)
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

func (d *describer) parameters(op *operation) []any {
	list := []any{}
	for _, found := range pathVariable.FindAllStringSubmatch(op.path, -1) {
		of := wire.Schema{"type": "string"}
		if found[1] != "version" {
			of["pattern"] = idPattern
		}
		list = append(list, map[string]any{"name": found[1], "in": "path", "required": true, "description": pathTexts[found[1]], "schema": of})
	}
	for _, p := range op.query {
		list = append(list, d.parameter(p, "query"))
	}
	for _, p := range op.headers {
		list = append(list, d.parameter(p, "header"))
	}
	if op.repeatable() {
		list = append(list, map[string]any{"$ref": "#/components/parameters/IdempotencyKey"})
	}
	return append(list, map[string]any{"$ref": "#/components/parameters/RequestId"})
}

func (d *describer) parameter(p parameter, in string) map[string]any {
	of := wire.Schema{"type": "string"}
	out := map[string]any{"name": p.name, "in": in, "description": p.about, "schema": of}
	switch p.sort {
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

func (d *describer) requestBody(op *operation) map[string]any {
	switch {
	case op.form != nil:
		of := d.of(op.form)
		return map[string]any{"required": true, "description": "A form with the file.", "content": map[string]any{"multipart/form-data": map[string]any{"schema": of}}}
	case op.body == nil || op.body == noSettings:
		return nil
	}
	media := map[string]any{"schema": d.bodySchema(op)}
	if request := d.examples[op.id].Request; request != nil {
		media["example"] = request
	}
	return map[string]any{"required": !op.emptyBody, "content": map[string]any{"application/json": media}}
}

// bodySchema is that of the body's type, and what this operation requires of it.
func (d *describer) bodySchema(op *operation) wire.Schema {
	of := d.typed(op.body, wire.Capitalize(op.id)+"Request")
	if len(op.requires) == 0 {
		return of
	}
	return wire.Schema{"allOf": []any{of, wire.Schema{"type": "object", "required": op.requires}}}
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

func (d *describer) responses(op *operation) map[string]any {
	headers := map[string]any{requestIDHeader: map[string]any{"$ref": "#/components/headers/RequestId"}}
	if op.repeatable() {
		headers[replayedHeader] = map[string]any{"$ref": "#/components/headers/Replayed"}
	}
	for _, p := range op.replies {
		headers[p.name] = map[string]any{"description": p.about, "schema": d.parameter(p, "header")["schema"]}
	}
	content := map[string]any{}
	switch {
	case op.media == "application/json":
		content[op.media] = map[string]any{"schema": wire.Schema{"type": "object"}}
	case op.media != "":
		content[op.media] = map[string]any{"schema": wire.Schema{"type": "string"}}
	case op.answer != nil:
		media := map[string]any{"schema": d.typed(op.answer, wire.Capitalize(op.id)+"Response")}
		if answer := d.examples[op.id].Answer; answer != nil {
			media["example"] = answer
		}
		if op.orElse != nil {
			media["schema"] = wire.Schema{"anyOf": []any{media["schema"], d.of(op.orElse)}}
		}
		content["application/json"] = media
	}
	for _, text := range op.texts {
		content[text] = map[string]any{"schema": wire.Schema{"type": "string"}}
	}
	if op.streams != nil {
		content["text/event-stream"] = map[string]any{"schema": wire.Schema{"type": "string", "contentMediaType": "application/json", "contentSchema": d.of(op.streams),
			"description": "Server-sent events. The data of each is one " + componentName(op.streams) + "."}}
	}
	all := map[string]any{"200": map[string]any{"description": "It is done, or this is what was asked for.", "headers": headers, "content": content}}
	for _, status := range op.refusals() {
		all[strconv.Itoa(status)] = map[string]any{"$ref": "#/components/responses/" + refusalName(status, op.inference())}
	}
	return all
}

// refusals are the statuses other than 200 that the operation may answer.
func (op *operation) refusals() []int {
	if op.gate == everybody {
		return []int{http.StatusRequestHeaderFieldsTooLarge, http.StatusInternalServerError, http.StatusServiceUnavailable}
	}
	all := []int{400, 401, 403, 404, 409, 429, 500, 501, 503, 504}
	if op.body != nil || op.form != nil {
		all = append(all, http.StatusRequestEntityTooLarge)
	}
	if op.inference() {
		all = append(all, http.StatusPreconditionFailed)
	}
	return all
}
