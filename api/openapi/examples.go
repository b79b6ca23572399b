package openapi

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"anneal/api/request"
	"anneal/api/wire"
)

// ExamplesJSON has the document's examples (a JSON list of Example), in the order of the scripts
// from which tests record them.
//
//go:embed examples.json
var ExamplesJSON []byte

// An Example is a recorded request with its response. Tests record the examples from the scripts in
// api/testdata/examples: go test ./api -run TestExamples -update.
type Example struct {
	Operation string            `json:"operation"` // ID of the operation
	Summary   string            `json:"summary"`   // title of the example, unique for the operation
	Path      string            `json:"path"`      // path and query of the request
	Headers   map[string]string `json:"headers,omitempty"`
	// Request is the JSON body, or an object with the fields of the form, in which the value @NAME
	// means the content of the file NAME, as in curl -F.
	Request json.RawMessage   `json:"request,omitempty"`
	Files   map[string]string `json:"files,omitempty"` // contents of the form's text files by name
	Media   string            `json:"media"`           // media type of the response
	// JSON value, or a JSON string if Media is not application/json
	Response json.RawMessage `json:"response"`
}

var notInKey = regexp.MustCompile(`[^a-z0-9]+`)

// Key returns the key of the example in an Examples Object of OpenAPI.
func (e Example) Key() string {
	return strings.Trim(notInKey.ReplaceAllString(strings.ToLower(e.Summary), "-"), "-")
}

// values returns the values of the path and query parameters in the example's request, by name. It
// returns nil if the path does not match the operation.
func (e Example) values(op *request.Operation) (path map[string]string, query url.Values) {
	plain, after, _ := strings.Cut(e.Path, "?")
	of := `>[^/:]+)`
	if op.Slashes {
		of = `>.+)`
	}
	pattern := regexp.QuoteMeta(op.Path)
	pattern = strings.ReplaceAll(strings.ReplaceAll(pattern, `\{`, `(?P<`), `\}`, of)
	at := regexp.MustCompile("^" + strings.ReplaceAll(pattern, `/\*`, `/(?P<rest>.+)`) + "$")
	found := at.FindStringSubmatch(plain)
	if found == nil {
		return nil, nil
	}
	path = map[string]string{}
	for i, name := range at.SubexpNames() {
		if name != "" {
			path[name], _ = url.PathUnescape(found[i])
		}
	}
	query, _ = url.ParseQuery(after)
	return path, query
}

// A shownExample is an Example Object of OpenAPI.
type shownExample struct {
	key     string
	Summary string            `json:"summary"`
	Value   any               `json:"value"`
	Files   map[string]string `json:"x-files,omitempty"`
}

// shownExamples are the examples of a parameter or a media type. As JSON they are an object whose
// keys are in the order of the list.
type shownExamples []shownExample

// MarshalJSON implements json.Marshaler.
func (s shownExamples) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	for i, one := range s {
		key, err := json.Marshal(one.key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(one)
		if err != nil {
			return nil, err
		}
		out.WriteByte("{,"[min(i, 1)])
		out.Write(key)
		out.WriteByte(':')
		out.Write(value)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// examplesOf returns the examples of a part of an operation, such as a parameter. value returns
// what an example contributes to that part; false if it contributes nothing.
func (d *describer) examplesOf(op *request.Operation, value func(Example) (any, bool)) (all shownExamples) {
	for _, example := range d.examples[op.ID] {
		if v, ok := value(example); ok {
			all = append(all, shownExample{key: example.Key(), Summary: example.Summary, Value: v})
		}
	}
	return all
}

// addExamples adds the examples of a parameter to its Parameter Object out. in is the location of
// the parameter: query, path or header.
func (d *describer) addExamples(op *request.Operation, out map[string]any, p request.Parameter, in string) {
	examples := d.examplesOf(op, func(e Example) (any, bool) {
		path, query := e.values(op)
		switch in {
		case "path":
			text, ok := path[p.Name]
			return text, ok
		case "query":
			if p.Kind == wire.Map {
				value := mapValue(p.Name, query)
				return value, len(value) > 0
			}
			return typedValue(p.Kind, query.Get(p.Name)), query.Has(p.Name)
		}
		text, ok := e.Headers[p.Name]
		return text, ok
	})
	if len(examples) > 0 {
		out["examples"] = examples
	} else if value := d.defaultExample(op, p); value != nil {
		out["example"] = value
	}
}

// mapValue returns the entries of a parameter of type Map, which a query writes as NAME[KEY]=VALUE.
func mapValue(name string, query url.Values) map[string]string {
	value := map[string]string{}
	for given := range query {
		if key, ok := strings.CutPrefix(strings.TrimSuffix(given, "]"), name+"["); ok {
			value[key] = query.Get(given)
		}
	}
	return value
}

// typedValue converts the text of a parameter to the type of its schema.
func typedValue(kind wire.Kind, text string) any {
	switch kind {
	case wire.Bool:
		return text == "true"
	case wire.Int:
		if n, err := strconv.Atoi(text); err == nil {
			return n
		}
	case wire.List:
		return strings.Split(text, ",")
	}
	return text
}

// samplePageToken and samplePosition are the example values of parameters for which no example was
// recorded.
const (
	samplePageToken = "b2Zmc2V0PTUwO3F1ZXJ5PTdkOWYyYzE0"
	samplePosition  = "418"
)

// maskable lists the fields that examples of read masks contain, if the resource has them.
var maskable = []string{"name", "id", "type", "displayName", "state", "keyName", "role", "step", "maxValue",
	"validated",
	"subject", "createTime", "time", "position"}

// maxMasked is the maximum number of fields in an example of a read mask.
const maxMasked = 4

// defaultExample returns an example value of a parameter for which no example was recorded. It
// returns nil for all parameters except page tokens, positions and masks.
func (d *describer) defaultExample(op *request.Operation, p request.Parameter) any {
	switch p.Name {
	case request.PageTokenParameter.Name:
		return samplePageToken
	case "Last-Event-ID", request.AsOfParameter.Name:
		return samplePosition
	case request.ReadMaskParameter.Name:
		part := wire.Deref(maskedPart(op.Response))
		if wire.KindOf(part) == wire.List {
			part = wire.Deref(part.Elem())
		}
		return maskOf(part)
	case request.UpdateMaskParameter.Name:
		for _, example := range d.examples[op.ID] {
			var body map[string]any
			if json.Unmarshal(example.Request, &body) == nil {
				delete(body, "name")
				return wire.SortedKeys(body)
			}
		}
	}
	return nil
}

// maskOf returns an example of a read mask for a type: at most maxMasked of its fields.
func maskOf(t reflect.Type) []string {
	var mask []string
	for _, f := range wire.StructOf(t).Fields {
		if slices.Contains(maskable, f.Name) && !f.Input && len(mask) < maxMasked {
			mask = append(mask, f.Name)
		}
	}
	return mask
}
