package api

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"unicode"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
)

// schemas are the components of a document: one for each struct type that the
// wire carries, under its name.
type schemas struct {
	byName map[string]wire.Schema
	types  map[string]reflect.Type
	// partial are types of which an answer may hold a part, since a read mask
	// may name what it wants, or a request, since nothing in it is required
	// unless the operation says so. Of all others a field without omitempty is
	// always there.
	partial map[reflect.Type]bool
	// asked are types that requests carry: unknown fields of these are refused.
	asked map[reflect.Type]bool
}

func newSchemas(table []request.Operation) *schemas {
	s := &schemas{map[string]wire.Schema{}, map[string]reflect.Type{}, map[reflect.Type]bool{}, map[reflect.Type]bool{}}
	for i := range table {
		op := &table[i]
		if op.Body != nil && !op.IsInference() { // whose unknown fields are ignored
			reach(op.Body, s.asked)
		}
		if op.Declares("readMask") && op.Response != nil {
			reach(maskedPart(op.Response), s.partial)
		}
	}
	for t := range s.asked {
		s.partial[t] = true
	}
	return s
}

// maskedPart is what a read mask applies to: the answer, or the items of a page.
func maskedPart(answer reflect.Type) reflect.Type {
	if answer.Name() == "" && answer.NumField() > 0 {
		return answer.Field(0).Type
	}
	return answer
}

// reach collects the struct types that a type leads to.
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

// of is the schema of a type: a reference when it is a struct with a name.
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
		return wire.Schema{"type": []string{"string", "integer"}, "pattern": countPattern}
	case wire.List:
		return wire.Schema{"type": "array", "items": s.of(t.Elem())}
	case wire.Map:
		return wire.Schema{"type": "object", "additionalProperties": s.of(t.Elem())}
	case wire.Object:
		if t.NumField() == 0 {
			return wire.Schema{"type": "object"}
		}
		return s.named(t, componentName(t))
	}
	return wire.Schema{} // anything
}

const countPattern = "^-?[0-9]+$"

func integerSchema(t reflect.Type) wire.Schema {
	switch t.Kind() {
	case reflect.Int, reflect.Int32:
		return wire.Schema{"type": "integer", "format": "int32"}
	case reflect.Uint64:
		return wire.Schema{"type": "integer", "format": "int64", "minimum": 0}
	}
	return wire.Schema{"type": "integer", "format": "int64"}
}

// componentName is the type's name as generated clients see it.
func componentName(t reflect.Type) string {
	name := []rune(t.Name())
	name[0] = unicode.ToUpper(name[0])
	return string(name)
}

// named refers to the component of a struct type, and makes it when it is new.
func (s *schemas) named(t reflect.Type, name string) wire.Schema {
	if known, ok := s.types[name]; !ok {
		s.types[name] = t
		s.byName[name] = s.object(t, name)
	} else if known != t {
		panic(fmt.Sprintf("api: %v and %v are both named %s", known, t, name))
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
	if s.asked[t] {
		out["additionalProperties"] = false
	}
	if about := typeTexts[name]; about != "" {
		out["description"] = about
	}
	return out
}

// property is a field of a component: its type, and what the tables of texts
// and rules say of it.
func (s *schemas) property(t reflect.Type, owner string, f wire.Field) wire.Schema {
	out := s.of(f.Type)
	if f.Output && wire.Deref(f.Type) == wire.CountType {
		out["type"] = "string"
	}
	rule := ruleOf(owner, f.Name)
	rule.Apply(out)
	if f.Type.Kind() == reflect.Pointer && !f.OmitEmpty && !s.asked[t] {
		out = nullable(out)
	}
	if about := descriptionOf(owner, f.Name); about != "" {
		out["description"] = about
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

// descriptionOf is what a field's description says: of that type's own, or of every
// field of that name.
func descriptionOf(owner, field string) string {
	for _, name := range []string{owner + "." + field, field} {
		if text := cmp.Or(fieldTexts[name], inferenceTexts[name], audioTexts[name]); text != "" {
			return text
		}
	}
	return ""
}

func ruleOf(owner, field string) wire.Rule {
	if own, ok := fieldRules[owner+"."+field]; ok {
		return own
	}
	return fieldRules[field]
}

// statusCodes are the canonical codes by name.
func statusCodes() []string {
	var names []string
	for code := domain.OK; code <= domain.Unauthenticated; code++ {
		names = append(names, code.String())
	}
	return names
}
