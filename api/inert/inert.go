// Package inert lists the request fields that the server accepts, but that have no effect. A
// response to a request that sets such a field has a warning that names the field. The
// documentation of the fields is generated from the same table.
package inert

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"anneal/api/wire"
)

// A Field is a request field that has no effect, either always or under a condition.
type Field struct {
	// Requests lists the requests that have the field: names of collections, for the requests that
	// create and update their resources, or IDs of operations.
	Requests []string
	// Path is the path of the field in the resource or the body, or "?" followed by the name of a
	// query parameter. If a field on the path is a list, the path means that field of each element.
	Path   string
	Reason string // why the field has no effect: a clause without a full stop
	When   *Condition
}

// A Condition states when a field has no effect. A nil Condition means always.
type Condition struct {
	Text  string // completes the sentence "it has no effect …", such as "without enableHotLoad"
	Holds func(f Facts) bool
	// Engines lists the engines that ignore the field, if the condition depends on the engines of
	// nodes.
	Engines []string
}

// Facts has what a Condition can depend on: the request, and the configuration of the installation.
type Facts struct {
	Value        any            // value of the field in the request
	Fields       map[string]any // fields of the resource after the change, or of the request's body
	DirectRoutes bool           // the server was started with a domain for direct routes
	Located      bool           // at least one node has a region
	// the deployment that serves the inference request has disableSpeculativeDecoding
	NoDrafts bool
	// Engines returns the engines of the nodes on which the request may run: see
	// domain.Node.EngineNames.
	Engines func() []string
	// HotLoads reports whether a deployment of the account has enableHotLoad. ref is the
	// deployment's ID or resource name; ok is false if there is no such deployment.
	HotLoads func(ref string) (enabled, ok bool)
	// HasPrecision reports whether the stored weights of a model have the precision. If copies is
	// true, a prepared copy of the model in that precision counts too.
	HasPrecision func(model, precision string, copies bool) bool
}

// Always reports whether the field has no effect in any request.
func (f Field) Always() bool { return f.When == nil }

// Parameter returns the name of the query parameter; "" for a field of a resource or body.
func (f Field) Parameter() string {
	name, ok := strings.CutPrefix(f.Path, "?")
	if !ok {
		return ""
	}
	return name
}

// Text returns a sentence for the API reference that says when and why the field has no effect.
func (f Field) Text() string { return "It has no effect" + f.when() + ": " + f.Reason + "." }

// Warning returns the warning for a request that sets the field.
func (f Field) Warning() string {
	return strings.TrimPrefix(f.Path, "?") + ": accepted, but has no effect" + f.when() + ": " + f.Reason
}

func (f Field) when() string {
	if f.When == nil {
		return ""
	}
	return " " + f.When.Text
}

// Of returns the fields in Table of a collection or an operation.
func Of(request string) (fields []Field) {
	for _, f := range Table {
		if slices.Contains(f.Requests, request) {
			fields = append(fields, f)
		}
	}
	return fields
}

// Set returns those of the given fields that the body of a request sets to a value other than the
// default. It ignores query parameters.
func Set(fields []Field, body map[string]any) (set []Field) {
	for _, f := range fields {
		values := valuesAt(body, strings.Split(f.Path, "."))
		if f.Parameter() == "" && slices.ContainsFunc(values, func(value any) bool { return !isDefault(value) }) {
			set = append(set, f)
		}
	}
	return set
}

// Warnings returns a warning for each of the given fields that the body of a request sets to a
// value other than the default, if the field's condition is true. It ignores query parameters.
func Warnings(fields []Field, body map[string]any, facts Facts) (warnings []string) {
	for _, f := range Set(fields, body) {
		set := slices.ContainsFunc(valuesAt(body, strings.Split(f.Path, ".")), func(value any) bool {
			facts.Value = value
			return !isDefault(value) && (f.When == nil || f.When.Holds(facts))
		})
		if set {
			warnings = append(warnings, f.Warning())
		}
	}
	return warnings
}

// ParameterWarnings returns a warning for each of the given query parameters that a request sets to
// a value other than "", false and 0.
func ParameterWarnings(fields []Field, query url.Values) (warnings []string) {
	for _, f := range fields {
		name := f.Parameter()
		if name == "" {
			continue
		}
		for key, values := range query {
			if (key == name || wire.Camel(key) == name) && !slices.Contains([]string{"", "false", "0"}, values[0]) {
				warnings = append(warnings, f.Warning())
			}
		}
	}
	return warnings
}

// OutputWarnings returns a warning for each output-only field that a request tries to change. A
// request may repeat the value that the resource has before or after the change, so that clients
// can send back what they have read. given has the request's values by field path; previous is nil
// for a new resource.
func OutputWarnings(given, previous, updated map[string]any) (warnings []string) {
	for _, path := range wire.SortedKeys(given) {
		value, at := given[path], strings.Split(path, ".")
		same := func(resource map[string]any) bool {
			return slices.ContainsFunc(valuesAt(resource, at), func(one any) bool { return equal(one, value) })
		}
		if !isDefault(value) && !same(previous) && !same(updated) {
			warnings = append(warnings, path+": accepted, but has no effect: only the server sets it")
		}
	}
	return warnings
}

// equal reports whether two JSON values are equal.
func equal(a, b any) bool {
	one, err := json.Marshal(a)
	other, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(one, other)
}

// valuesAt returns the values at a path in a JSON value. The names of the fields may be in
// lowerCamelCase or snake_case. A list on the path yields the values of all its elements.
func valuesAt(value any, path []string) (values []any) {
	switch v := value.(type) {
	case map[string]any:
		if len(path) == 0 {
			return []any{v}
		}
		field, ok := v[path[0]]
		if !ok {
			for key, other := range v {
				if wire.Snake(key) == path[0] {
					field = other
				}
			}
		}
		return valuesAt(field, path[1:])
	case []any:
		if len(path) > 0 {
			for _, element := range v {
				values = append(values, valuesAt(element, path)...)
			}
			return values
		}
	}
	if len(path) > 0 {
		return nil
	}
	return []any{value}
}

// isDefault reports whether a JSON value is the default of its type: null, false, 0, "", the
// UNSPECIFIED value of an enumeration, an empty list, or an object with only default values.
func isDefault(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == "" || strings.HasSuffix(v, "_UNSPECIFIED")
	case float64:
		return v == 0
	case json.Number:
		n, err := v.Float64()
		return err == nil && n == 0
	case []any:
		return len(v) == 0
	case map[string]any:
		for _, field := range v {
			if !isDefault(field) {
				return false
			}
		}
		return true
	}
	return false
}

// hasFixedWeights reports whether the deployment's replicas always serve the stored weights, and so
// ignore the field precision.
func (f Facts) hasFixedWeights() bool { return f.isSet("enableAddons") || f.isSet("enableHotLoad") }

// text returns the text at a path of f.Fields; "" if there is none.
func (f Facts) text(path string) string {
	for _, value := range valuesAt(f.Fields, strings.Split(path, ".")) {
		if text, ok := value.(string); ok {
			return text
		}
	}
	return ""
}

// isSet reports whether f.Fields has a value other than the default at a path.
func (f Facts) isSet(path string) bool {
	return slices.ContainsFunc(valuesAt(f.Fields, strings.Split(path, ".")),
		func(value any) bool { return !isDefault(value) })
}

// number returns the number at a path of f.Fields; 0 if there is none.
func (f Facts) number(path string) float64 {
	for _, value := range valuesAt(f.Fields, strings.Split(path, ".")) {
		return asNumber(value)
	}
	return 0
}

func asNumber(value any) float64 {
	switch n := value.(type) {
	case float64:
		return n
	case json.Number:
		f, _ := n.Float64()
		return f
	}
	return 0
}

// Given returns the JSON object of a request's body, or nil if the body sets none of the fields to
// a value other than the default.
func Given(fields []Field, value any) (map[string]any, error) {
	tree, ok := value.(map[string]any)
	if !ok {
		data, err := json.Marshal(value)
		if err != nil || !names(data, fields) {
			return nil, err
		}
		if err := json.Unmarshal(data, &tree); err != nil {
			return nil, err
		}
	}
	if len(Set(fields, tree)) == 0 {
		return nil, nil
	}
	return tree, nil
}

// names reports whether JSON text contains the name of one of the fields. Most bodies do not, so
// that Given need not decode them.
func names(data []byte, fields []Field) bool {
	text := bytes.ReplaceAll(bytes.ToLower(data), []byte("_"), nil)
	return slices.ContainsFunc(fields, func(f Field) bool {
		name := f.Path[strings.LastIndex(f.Path, ".")+1:]
		return bytes.Contains(text, []byte(strings.ToLower(strings.ReplaceAll(name, "_", ""))))
	})
}

// Tree returns a wire value, such as a request's body, as a JSON object.
func Tree(value any) (map[string]any, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	return tree, json.Unmarshal(data, &tree)
}
