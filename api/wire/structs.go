// Package wire converts between the JSON of the API and Go types: it decodes strictly, applies
// field masks, and checks the rules of fields.
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

// Capitalize returns a name in UpperCamelCase.
func Capitalize(name string) string { return strings.ToUpper(name[:1]) + name[1:] }

// A Struct describes the JSON object of a struct type: its fields and their JSON names. The struct
// tag api restricts the use of a field in requests:
//
//	api:"output"  only the server sets it: ignored in bodies, rejected in update masks
//	api:"input"   accepted in bodies, not returned by get and list
type Struct struct {
	Fields []Field
	ByName map[string]int // index in Fields by name, in lowerCamelCase and in snake_case
}

type Field struct {
	Name      string // JSON name in lowerCamelCase
	Type      reflect.Type
	Output    bool
	Input     bool
	OmitEmpty bool
}

var structs sync.Map // cache of StructOf: reflect.Type → *Struct

// StructOf returns the description of a struct type. Fields of an embedded struct without a JSON
// name belong to the outer struct, as in encoding/json.
func StructOf(t reflect.Type) *Struct {
	if known, ok := structs.Load(t); ok {
		return known.(*Struct)
	}
	s := &Struct{ByName: map[string]int{}}
	s.collect(t)
	known, _ := structs.LoadOrStore(t, s)
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
			s.Fields = append(s.Fields,
				Field{name, f.Type, use == "output", use == "input", strings.Contains(options, "omit")})
		}
	}
	for _, e := range embedded { // a field of the outer struct hides an embedded field with the same name
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

// Names returns the JSON names of the struct's fields, for messages. It includes output-only fields
// if outputToo is true.
func (s *Struct) Names(outputToo bool) (all []string) {
	for _, f := range s.Fields {
		if outputToo || !f.Output {
			all = append(all, f.Name)
		}
	}
	return all
}

func Deref(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// Snake converts a lowerCamelCase name to snake_case.
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

// Camel converts a snake_case name to lowerCamelCase; other names are unchanged.
func Camel(name string) string {
	parts := strings.Split(name, "_")
	for i, p := range parts[1:] {
		if p != "" {
			parts[i+1] = strings.ToUpper(p[:1]) + p[1:]
		}
	}
	return strings.Join(parts, "")
}

// A Kind is the kind of JSON value that a Go type is decoded from and encoded to.
type Kind int

const (
	Any Kind = iota
	Text
	Bool
	Int
	Count // a whole number, or its decimal digits in a string
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

// KindOf returns the kind of t. It panics for a type that a wire type must not contain; that bug is
// found by the first test that uses the wire type.
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
	panic("wire: no JSON value represents the Go type " + t.String())
}
