package api

import (
	"encoding/json"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode"

	"anneal/domain"
)

// A shape is what the wire knows of a struct type: its fields under their JSON
// names. A tag on a field says how requests may use it:
//
//	api:"output"  the server alone sets it: ignored in bodies, refused in update masks
//	api:"input"   accepted in bodies, never answered by get and list
type shape struct {
	fields []wireField
	byName map[string]int // under camelCase and snake_case
}

type wireField struct {
	name      string // lowerCamelCase
	typ       reflect.Type
	output    bool
	input     bool
	omitempty bool
}

var shapes sync.Map // reflect.Type → *shape

// shapeOf reads a struct type. Fields of embedded structs without a name of
// their own belong to the one around them, as in JSON.
func shapeOf(t reflect.Type) *shape {
	if known, ok := shapes.Load(t); ok {
		return known.(*shape)
	}
	s := &shape{byName: map[string]int{}}
	s.collect(t)
	known, _ := shapes.LoadOrStore(t, s)
	return known.(*shape)
}

func (s *shape) collect(t reflect.Type) {
	var embedded []reflect.Type
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case f.Anonymous && name == "":
			embedded = append(embedded, plain(f.Type))
		case f.IsExported() && name != "":
			if _, taken := s.byName[name]; taken {
				continue
			}
			s.byName[name], s.byName[snake(name)] = len(s.fields), len(s.fields)
			use := f.Tag.Get("api")
			s.fields = append(s.fields, wireField{name, f.Type, use == "output", use == "input", strings.Contains(options, "omitempty")})
		}
	}
	for _, e := range embedded { // after its own: the shallowest of a name counts
		s.collect(e)
	}
}

func (s *shape) field(name string) (wireField, bool) {
	i, ok := s.byName[name]
	if !ok {
		return wireField{}, false
	}
	return s.fields[i], true
}

// names lists the fields that a request may set, for messages.
func (s *shape) names(outputToo bool) string {
	var all []string
	for _, f := range s.fields {
		if outputToo || !f.output {
			all = append(all, f.name)
		}
	}
	return strings.Join(all, ", ")
}

func plain(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// snake is a lowerCamelCase name in snake_case.
func snake(camel string) string {
	var b strings.Builder
	for _, r := range camel {
		if unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// camel is a snake_case name in lowerCamelCase; other names stay.
func camel(name string) string {
	parts := strings.Split(name, "_")
	for i, p := range parts[1:] {
		if p != "" {
			parts[i+1] = strings.ToUpper(p[:1]) + p[1:]
		}
	}
	return strings.Join(parts, "")
}

// A sort is what a JSON value has to be for a Go type.
type sort int

const (
	anyValue sort = iota
	textValue
	boolValue
	intValue
	countValue // a whole number or a decimal string of one
	floatValue
	timeValue
	objectValue
	mapValue
	listValue
)

var (
	timeType  = reflect.TypeFor[time.Time]()
	countType = reflect.TypeFor[domain.Count]()
	rawType   = reflect.TypeFor[json.RawMessage]()
)

// sortOf panics on a type that no wire struct may have: a fault of the
// program, found by the first test that touches it.
func sortOf(t reflect.Type) sort {
	switch {
	case t == timeType:
		return timeValue
	case t == countType:
		return countValue
	case t == rawType || t.Kind() == reflect.Interface:
		return anyValue
	}
	switch t.Kind() {
	case reflect.String:
		return textValue
	case reflect.Bool:
		return boolValue
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint64:
		return intValue
	case reflect.Float64, reflect.Float32:
		return floatValue
	case reflect.Struct:
		return objectValue
	case reflect.Map:
		return mapValue
	case reflect.Slice:
		return listValue
	}
	panic("api: no JSON value for " + t.String())
}
