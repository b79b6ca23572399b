// Package inert lists in one table the fields of requests that are accepted, but have no effect.
// Responses to requests that set such a field carry a warning that names the field, and the
// documentation of the field and of the server is generated from the table.
package inert

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"anneal/api/wire"
)

// A Field is a field of requests that is accepted, but has no effect.
type Field struct {
	// Requests names the collections whose create and update requests have the field, or the IDs of
	// the operations that have it.
	Requests []string
	// Path is the path of the field in the resource or in the body, or "?" and the name of a query
	// parameter. A list on the path stands for all of its elements.
	Path   string
	Reason string // why the field has no effect: a clause without a full stop
	When   *Condition
}

// A Condition states when a field has no effect.
type Condition struct {
	Text  string // completes "has no effect", such as "without enableHotLoad"
	Holds func(f Facts) bool
	// Engines are the engines that ignore the field, if the condition is that nodes have one of them.
	Engines []string
}

// Facts are the request and the configuration that a Condition is evaluated on.
type Facts struct {
	Value        any            // value of the field in the request
	Fields       map[string]any // fields of the resource after the change, or of the body
	DirectRoutes bool           // the server has a domain for direct routes
	Located      bool           // a node of the installation has a region
	NoDrafts     bool           // the deployment of an inference request has disableSpeculativeDecoding
	// Engines returns the engines of the nodes that may carry out the request: see domain.Node.EngineNames.
	Engines func() []string
	// HotLoads reports whether a deployment of the account has enableHotLoad; ok is false when there
	// is no such deployment. ref is its ID or its resource name.
	HotLoads func(ref string) (enabled, ok bool)
	// HasPrecision reports whether the stored weights of a model have the precision. If copies is
	// true, it also returns true when a prepared copy of the weights has it.
	HasPrecision func(model, precision string, copies bool) bool
}

// Always reports whether the field has no effect in any request.
func (f Field) Always() bool { return f.When == nil }

// Parameter returns the name of the parameter of the query, or "" for a field of the body.
func (f Field) Parameter() string {
	name, ok := strings.CutPrefix(f.Path, "?")
	if !ok {
		return ""
	}
	return name
}

// Text returns a sentence that says when and why the field has no effect.
func (f Field) Text() string { return "It has no effect" + f.when() + ": " + f.Reason + "." }

// Warning returns the warning of a request that sets the field.
func (f Field) Warning() string {
	return strings.TrimPrefix(f.Path, "?") + ": accepted, but has no effect" + f.when() + ": " + f.Reason
}

func (f Field) when() string {
	if f.When == nil {
		return ""
	}
	return " " + f.When.Text
}

// Of returns the fields of the table for a collection or an operation.
func Of(request string) (fields []Field) {
	for _, f := range Table {
		if slices.Contains(f.Requests, request) {
			fields = append(fields, f)
		}
	}
	return fields
}

// Set returns those of the fields that have a value other than the default in the body of a request.
// It leaves out parameters of the query.
func Set(fields []Field, body map[string]any) (set []Field) {
	for _, f := range fields {
		values := valuesAt(body, strings.Split(f.Path, "."))
		if f.Parameter() == "" && slices.ContainsFunc(values, func(value any) bool { return !isDefault(value) }) {
			set = append(set, f)
		}
	}
	return set
}

// Warnings returns a warning for each of the fields that has a value other than the default in the
// body of a request, and whose condition holds. It ignores parameters of the query.
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

// ParameterWarnings returns the warnings of a request with parameters of the query that have no
// effect.
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

// OutputWarnings returns a warning for each output-only field to which a request gives another value
// than the resource has before or after the change, so that a client can send back what it has read.
// given are the values by the path of their field. before is nil for a new resource.
func OutputWarnings(given, before, after map[string]any) (warnings []string) {
	for _, path := range wire.SortedKeys(given) {
		value, at := given[path], strings.Split(path, ".")
		same := func(resource map[string]any) bool {
			return slices.ContainsFunc(valuesAt(resource, at), func(one any) bool { return equal(one, value) })
		}
		if !isDefault(value) && !same(before) && !same(after) {
			warnings = append(warnings, path+": accepted, but has no effect: only the server sets it")
		}
	}
	return warnings
}

// equal reports whether two JSON values are the same.
func equal(a, b any) bool {
	one, err := json.Marshal(a)
	other, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(one, other)
}

// valuesAt returns the values at a path of field names, which are written as in the table or in
// snake_case. A list on the path contributes the values of all of its elements.
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

// isDefault reports whether a JSON value is the default of its type: null, false, 0, "", an
// enumeration's value for unspecified, an empty list, or an object without other values.
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

// hasFixedWeights reports whether replicas serve the stored weights and ignore the field precision.
func (f Facts) hasFixedWeights() bool { return f.isSet("enableAddons") || f.isSet("enableHotLoad") }

// text returns the text at a path of the resource; "" when it has none.
func (f Facts) text(path string) string {
	for _, value := range valuesAt(f.Fields, strings.Split(path, ".")) {
		if text, ok := value.(string); ok {
			return text
		}
	}
	return ""
}

// isSet reports whether the resource has a value other than the default at a path.
func (f Facts) isSet(path string) bool {
	return slices.ContainsFunc(valuesAt(f.Fields, strings.Split(path, ".")),
		func(value any) bool { return !isDefault(value) })
}

// number returns the number at a path of the resource; 0 when it has none.
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

// Given returns the JSON object of a wire value, the body of a request, or nil if the value sets none
// of the fields.
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

// names reports whether the JSON text data contains the name of one of the fields. Most requests name
// none, and are not decoded again.
func names(data []byte, fields []Field) bool {
	text := bytes.ReplaceAll(bytes.ToLower(data), []byte("_"), nil)
	return slices.ContainsFunc(fields, func(f Field) bool {
		name := f.Path[strings.LastIndex(f.Path, ".")+1:]
		return bytes.Contains(text, []byte(strings.ToLower(strings.ReplaceAll(name, "_", ""))))
	})
}

// Tree returns the JSON object of a wire value.
func Tree(value any) (map[string]any, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	return tree, json.Unmarshal(data, &tree)
}
