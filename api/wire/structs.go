// Package wire maps JSON of the interface to Go types: strict decoding, field masks, and the rules
// that a field keeps beyond its type.
package wire

import (
	"encoding/json"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode"

	"anneal/domain"
)

func StructField(goName, tag string, t reflect.Type) reflect.StructField {
	return reflect.StructField{Name: goName, Type: t, Tag: reflect.StructTag(`json:"` + tag + `"`)}
}

// Capitalize is a name in UpperCamelCase.
func Capitalize(name string) string { return strings.ToUpper(name[:1]) + name[1:] }

// A Struct is what the wire knows of a struct type: its fields under their JSON
// names. A tag on a field says how requests may use it:
//
//	api:"output"  the server alone sets it: ignored in bodies, refused in update masks
//	api:"input"   accepted in bodies, never answered by get and list
type Struct struct {
	Fields []Field
	ByName map[string]int // under camelCase and snake_case
}

type Field struct {
	Name      string // lowerCamelCase
	Type      reflect.Type
	Output    bool
	Input     bool
	OmitEmpty bool
}

var shapes sync.Map // reflect.Type → *shape

// StructOf reads a struct type. Fields of embedded structs without a name of
// their own belong to the one around them, as in JSON.
func StructOf(t reflect.Type) *Struct {
	if known, ok := shapes.Load(t); ok {
		return known.(*Struct)
	}
	s := &Struct{ByName: map[string]int{}}
	s.collect(t)
	known, _ := shapes.LoadOrStore(t, s)
	return known.(*Struct)
}

func (s *Struct) collect(t reflect.Type) {
	var embedded []reflect.Type
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case f.Anonymous && name == "":
			embedded = append(embedded, Deref(f.Type))
		case f.IsExported() && name != "":
			if _, taken := s.ByName[name]; taken {
				continue
			}
			s.ByName[name], s.ByName[Snake(name)] = len(s.Fields), len(s.Fields)
			use := f.Tag.Get("api")
			s.Fields = append(s.Fields, Field{name, f.Type, use == "output", use == "input", strings.Contains(options, "omitempty")})
		}
	}
	for _, e := range embedded { // after its own: the shallowest of a name counts
		s.collect(e)
	}
}

func (s *Struct) Field(name string) (Field, bool) {
	i, ok := s.ByName[name]
	if !ok {
		return Field{}, false
	}
	return s.Fields[i], true
}

// names lists the fields that a request may set, for messages.
func (s *Struct) Names(outputToo bool) string {
	var all []string
	for _, f := range s.Fields {
		if outputToo || !f.Output {
			all = append(all, f.Name)
		}
	}
	return strings.Join(all, ", ")
}

func Deref(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// Snake is a lowerCamelCase name in snake_case.
func Snake(camel string) string {
	var b strings.Builder
	for _, r := range camel {
		if unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// Camel is a snake_case name in lowerCamelCase; other names stay.
func Camel(name string) string {
	parts := strings.Split(name, "_")
	for i, p := range parts[1:] {
		if p != "" {
			parts[i+1] = strings.ToUpper(p[:1]) + p[1:]
		}
	}
	return strings.Join(parts, "")
}

// A Kind is what a JSON value has to be for a Go type.
type Kind int

const (
	Any Kind = iota
	Text
	Bool
	Int
	Count // a whole number or a decimal string of one
	Float
	Time
	Object
	Map
	List
)

var (
	timeType  = reflect.TypeFor[time.Time]()
	CountType = reflect.TypeFor[domain.Count]()
	rawType   = reflect.TypeFor[json.RawMessage]()
)

// KindOf panics on a type that no wire struct may have: a fault of the
// program, found by the first test that touches it.
func KindOf(t reflect.Type) Kind {
	switch {
	case t == timeType:
		return Time
	case t == CountType:
		return Count
	case t == rawType || t.Kind() == reflect.Interface:
		return Any
	}
	switch t.Kind() {
	case reflect.String:
		return Text
	case reflect.Bool:
		return Bool
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint64:
		return Int
	case reflect.Float64, reflect.Float32:
		return Float
	case reflect.Struct:
		return Object
	case reflect.Map:
		return Map
	case reflect.Slice:
		return List
	}
	panic("api: no JSON value for " + t.String())
}
