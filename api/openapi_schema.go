package api

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"unicode"

	"anneal/domain"
)

// A schema is one of JSON Schema 2020-12, as OpenAPI 3.1 has it.
type schema map[string]any

// schemas are the components of a document: one for each struct type that the
// wire carries, under its name.
type schemas struct {
	byName map[string]schema
	types  map[string]reflect.Type
	// partial are types of which an answer may hold a part, since a read mask
	// may name what it wants, or a request, since nothing in it is required
	// unless the operation says so. Of all others a field without omitempty is
	// always there.
	partial map[reflect.Type]bool
	// asked are types that requests carry: unknown fields of these are refused.
	asked map[reflect.Type]bool
}

func newSchemas(table []operation) *schemas {
	s := &schemas{map[string]schema{}, map[string]reflect.Type{}, map[reflect.Type]bool{}, map[reflect.Type]bool{}}
	for i := range table {
		op := &table[i]
		if op.body != nil && !op.inference() { // whose unknown fields are ignored
			reach(op.body, s.asked)
		}
		if op.declares("readMask") && op.answer != nil {
			reach(maskedPart(op.answer), s.partial)
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
	t = plain(t)
	switch sortOf(t) {
	case listValue, mapValue:
		reach(t.Elem(), found)
	case objectValue:
		if found[t] {
			return
		}
		found[t] = true
		for _, f := range shapeOf(t).fields {
			reach(f.typ, found)
		}
	}
}

// of is the schema of a type: a reference when it is a struct with a name.
func (s *schemas) of(t reflect.Type) schema {
	if t = plain(t); t == typeFor[file]() {
		return schema{"type": "string", "contentMediaType": "application/octet-stream"}
	}
	switch sortOf(t) {
	case textValue:
		return schema{"type": "string"}
	case boolValue:
		return schema{"type": "boolean"}
	case intValue:
		return integerSchema(t)
	case floatValue:
		return schema{"type": "number", "format": "double"}
	case timeValue:
		return schema{"type": "string", "format": "date-time"}
	case countValue:
		return schema{"type": []string{"string", "integer"}, "pattern": countPattern}
	case listValue:
		return schema{"type": "array", "items": s.of(t.Elem())}
	case mapValue:
		return schema{"type": "object", "additionalProperties": s.of(t.Elem())}
	case objectValue:
		if t.NumField() == 0 {
			return schema{"type": "object"}
		}
		return s.named(t, componentName(t))
	}
	return schema{} // anything
}

const countPattern = "^-?[0-9]+$"

func integerSchema(t reflect.Type) schema {
	switch t.Kind() {
	case reflect.Int, reflect.Int32:
		return schema{"type": "integer", "format": "int32"}
	case reflect.Uint64:
		return schema{"type": "integer", "format": "int64", "minimum": 0}
	}
	return schema{"type": "integer", "format": "int64"}
}

// componentName is the type's name as generated clients see it.
func componentName(t reflect.Type) string {
	name := []rune(t.Name())
	name[0] = unicode.ToUpper(name[0])
	return string(name)
}

// named refers to the component of a struct type, and makes it when it is new.
func (s *schemas) named(t reflect.Type, name string) schema {
	if known, ok := s.types[name]; !ok {
		s.types[name] = t
		s.byName[name] = s.object(t, name)
	} else if known != t {
		panic(fmt.Sprintf("api: %v and %v are both named %s", known, t, name))
	}
	return schema{"$ref": "#/components/schemas/" + name}
}

func (s *schemas) object(t reflect.Type, name string) schema {
	properties, required := map[string]any{}, []string{}
	for _, f := range shapeOf(t).fields {
		properties[f.name] = s.property(t, name, f)
		if !s.partial[t] && !f.omitempty {
			required = append(required, f.name)
		}
	}
	out := schema{"type": "object", "properties": properties}
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
func (s *schemas) property(t reflect.Type, owner string, f wireField) schema {
	out := s.of(f.typ)
	if f.output && plain(f.typ) == countType {
		out["type"] = "string"
	}
	rule := ruleOf(owner, f.name)
	rule.apply(out)
	if f.typ.Kind() == reflect.Pointer && !f.omitempty && !s.asked[t] {
		out = nullable(out)
	}
	if about := descriptionOf(owner, f.name); about != "" {
		out["description"] = about
	}
	switch {
	case f.output && !rule.both:
		out["readOnly"] = true
	case f.input && !rule.both:
		out["writeOnly"] = true
	}
	return out
}

func nullable(of schema) schema {
	if name, ok := of["type"].(string); ok {
		of["type"] = []string{name, "null"}
		return of
	}
	return schema{"anyOf": []any{of, schema{"type": "null"}}}
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

func ruleOf(owner, field string) rule {
	if own, ok := fieldRules[owner+"."+field]; ok {
		return own
	}
	return fieldRules[field]
}

// A rule is what is known of a field's values beyond its type.
type rule struct {
	enum     []string
	min, max *float64
	most     int // characters of a text
	entries  int // most, of a list
	pattern  string
	example  any
	both     bool   // in requests and in answers, although the type says one
	instead  schema // the whole schema, for values of several types
}

func (r rule) apply(to schema) {
	target := to
	if items, ok := to["items"].(schema); ok && (len(r.enum) > 0 || r.pattern != "") {
		target = items
	}
	if r.instead != nil {
		clear(to)
		for key, value := range r.instead {
			to[key] = value
		}
		return
	}
	if len(r.enum) > 0 {
		target["enum"] = r.enum
	}
	if r.pattern != "" {
		target["pattern"] = r.pattern
	}
	if r.min != nil {
		to["minimum"] = *r.min
	}
	if r.max != nil {
		to["maximum"] = *r.max
	}
	if r.most > 0 {
		to["maxLength"] = r.most
	}
	if r.entries > 0 {
		to["maxItems"] = r.entries
	}
	if r.example != nil {
		to["examples"] = []any{r.example}
	}
}

func between(least, most float64) rule { return rule{min: &least, max: &most} }

func atLeast(least float64) rule { return rule{min: &least} }

func oneOf(values ...string) rule { return rule{enum: values} }

// statusCodes are the canonical codes by name.
func statusCodes() []string {
	var names []string
	for code := domain.OK; code <= domain.Unauthenticated; code++ {
		names = append(names, code.String())
	}
	return names
}
