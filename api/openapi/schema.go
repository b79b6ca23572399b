package openapi

import (
	"fmt"
	"reflect"
	"slices"

	"anneal/api/request"
	"anneal/api/wire"
)

// schemas builds the schema components of a document: one for each struct type in requests and
// responses.
type schemas struct {
	docs   Documentation
	byName map[string]wire.Schema
	types  map[string]reflect.Type
	// partial has the types whose schemas have no required fields: types to which a readMask
	// applies, and types of requests, whose required fields depend on the operation. In all other
	// types, fields without omitempty are required.
	partial map[reflect.Type]bool
	// requested has the types of requests that reject unknown fields.
	requested map[reflect.Type]bool
	inert     map[string]string // sentences about fields without effect, by component and field
}

func newSchemas(table []request.Operation, docs Documentation) *schemas {
	s := &schemas{docs, map[string]wire.Schema{}, map[string]reflect.Type{}, map[reflect.Type]bool{},
		map[reflect.Type]bool{}, inertTexts(table)}
	for i := range table {
		op := &table[i]
		if op.Body != nil && !op.IsInference() { // inference operations ignore unknown fields with a warning
			reach(op.Body, s.requested)
		}
		if op.Declares("readMask") && op.Response != nil {
			reach(maskedPart(op.Response), s.partial)
		}
	}
	for t := range s.requested {
		s.partial[t] = true
	}
	return s
}

// maskedPart returns the type to which a readMask applies: the response, or the items of a page.
func maskedPart(response reflect.Type) reflect.Type {
	if response.Name() == "" && response.NumField() > 0 {
		return response.Field(0).Type
	}
	return response
}

// reach adds a type's struct type, and all struct types that it contains, to found.
func reach(t reflect.Type, found map[reflect.Type]bool) {
	t = wire.Deref(t)
	switch wire.KindOf(t) {
	case wire.List, wire.Map:
		reach(t.Elem(), found)
	case wire.Object:
		if found[t] {
			return
		}
		found[t] = true
		for _, f := range wire.StructOf(t).Fields {
			reach(f.Type, found)
		}
	}
}

// of returns the schema of a type. For a struct it is a reference to the struct's component.
func (s *schemas) of(t reflect.Type) wire.Schema {
	if t = wire.Deref(t); t == reflect.TypeFor[request.File]() {
		return wire.Schema{"type": "string", "contentMediaType": "application/octet-stream"}
	}
	switch wire.KindOf(t) {
	case wire.Text:
		return wire.Schema{"type": "string"}
	case wire.Bool:
		return wire.Schema{"type": "boolean"}
	case wire.Int:
		return integerSchema(t)
	case wire.Float:
		return wire.Schema{"type": "number", "format": "double"}
	case wire.Time:
		return wire.Schema{"type": "string", "format": "date-time"}
	case wire.Count:
		return wire.Schema{"type": []string{"string", "integer"}, "pattern": wire.CountPattern}
	case wire.List:
		return wire.Schema{"type": "array", "items": s.of(t.Elem())}
	case wire.Map:
		return wire.Schema{"type": "object", "additionalProperties": s.of(t.Elem())}
	case wire.Object:
		if t.NumField() == 0 {
			return wire.Schema{"type": "object"}
		}
		return s.named(t, ComponentName(t))
	}
	return wire.Schema{} // the empty schema allows every JSON value
}

func integerSchema(t reflect.Type) wire.Schema {
	switch t.Kind() {
	case reflect.Int, reflect.Int32:
		return wire.Schema{"type": "integer", "format": "int32"}
	case reflect.Uint64:
		return wire.Schema{"type": "integer", "format": "int64", "minimum": 0}
	}
	return wire.Schema{"type": "integer", "format": "int64"}
}

// named returns a reference to the component of a struct type, and adds the component to the
// document if it is missing.
func (s *schemas) named(t reflect.Type, name string) wire.Schema {
	if known, ok := s.types[name]; !ok {
		s.types[name] = t
		s.byName[name] = s.object(t, name)
	} else if known != t {
		panic(fmt.Sprintf("openapi: the types %v and %v have the same component name %s", known, t, name))
	}
	return wire.Schema{"$ref": "#/components/schemas/" + name}
}

func (s *schemas) object(t reflect.Type, name string) wire.Schema {
	properties, required := map[string]any{}, []string{}
	for _, f := range wire.StructOf(t).Fields {
		properties[f.Name] = s.property(t, name, f)
		if !s.partial[t] && !f.OmitEmpty {
			required = append(required, f.Name)
		}
	}
	out := wire.Schema{"type": "object", "properties": properties}
	if len(required) > 0 {
		slices.Sort(required)
		out["required"] = required
	}
	if s.requested[t] {
		out["additionalProperties"] = false
	}
	if text := s.docs.Types[name]; text != "" {
		out["description"] = text
	}
	return out
}

// property returns the schema of a field of the type owner, with its rule and description.
func (s *schemas) property(t reflect.Type, owner string, f wire.Field) wire.Schema {
	out := s.of(f.Type)
	if f.Output && wire.Deref(f.Type) == wire.CountType {
		out["type"] = "string"
	}
	rule := RuleOf(s.docs.Rules, owner, f.Name)
	rule.Apply(out)
	if f.Type.Kind() == reflect.Pointer && !f.OmitEmpty && !s.requested[t] {
		out = nullable(out)
	}
	if text := join(s.docs.TextOf(owner, f.Name), s.inert[owner+"."+f.Name]); text != "" {
		out["description"] = text
	}
	switch {
	case f.Output && !rule.Both:
		out["readOnly"] = true
	case f.Input && !rule.Both:
		out["writeOnly"] = true
	}
	return out
}

func nullable(of wire.Schema) wire.Schema {
	if name, ok := of["type"].(string); ok {
		of["type"] = []string{name, "null"}
		return of
	}
	return wire.Schema{"anyOf": []any{of, wire.Schema{"type": "null"}}}
}
