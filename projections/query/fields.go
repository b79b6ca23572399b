package query

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"time"
	"unicode"
)

// A shape is the type of a field for filters and orders. It determines how values of the field
// compare.
type shape int

const (
	presenceOnly shape = iota // a field of any other type, with which only the term field:* is possible
	text                      // strings, and enumerations, which are ordered by name
	boolean
	integer // integers of up to 64 bits, and counts, which the API writes as decimal strings
	number
	timestamp     // a time, in RFC 3339
	durationShape // a duration, such as 30s
	objectShape   // an object with fields
	list
	mapShape // a map with text keys
	anyJSON  // any JSON value, without a schema
)

var shapeNames = [...]string{"a value that can only be tested with :*", "text", "true or false", "a whole number",
	"a number",
	"a time", "a duration", "an object", "a list", "a map", "any JSON"}

func (s shape) String() string { return shapeNames[s] }

func (s shape) scalar() bool { return s >= text && s <= durationShape }

// Fields holds those fields of a wire type R, a struct with json tags, that filters and orders can
// use. Names are as in JSON (createTime) or in snake case (create_time); embedded structs are
// inlined, as in JSON. A field with the tag query:"-" cannot be used; a text with the tag
// query:"duration" compares as a duration.
type Fields[R any] struct {
	root   *field
	stored *field // the fields that are read from a row without rendering it; see StoredFieldsOf
}

// A field is a node in the tree of the fields of a wire type.
type field struct {
	name    string // name of the field in JSON
	shape   shape
	index   []int             // index in the enclosing struct, for reflect
	byName  map[string]*field // fields of an object, by JSON name and by snake case name
	ordered []*field          // fields of an object, in the order of the struct
	elem    *field            // type of the elements of a list or a map
	typ     reflect.Type      // Go type of the value, without pointers
	parsed  bool              // the value is a text that is parsed as a duration
	values  []string          // allowed values of a text; empty allows all
}

const maxFieldDepth = 8 // maximum depth of the tree, which would be infinite for a type that contains itself

// FieldsOf returns the fields of R, which must be a struct. It is slow, so call it once per type.
func FieldsOf[R any]() *Fields[R] {
	t := reflect.TypeFor[R]()
	if t.Kind() != reflect.Struct {
		panic("query: FieldsOf " + t.String() + ", which is not a struct")
	}
	return &Fields[R]{root: fieldOf("", t, "", 0)}
}

var (
	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
	counted      = reflect.TypeFor[interface{ Int64() int64 }]()
	jsonWriter   = reflect.TypeFor[json.Marshaler]()
	textWriter   = reflect.TypeFor[encoding.TextMarshaler]()
)

func fieldOf(name string, t reflect.Type, tag string, depth int) *field {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	f := &field{name: name, typ: t, shape: shapeOf(t)}
	switch {
	case tag == "duration" && f.shape == text:
		f.shape, f.parsed = durationShape, true
	case depth == maxFieldDepth:
		f.shape = presenceOnly
	case f.shape == objectShape:
		f.fill(depth)
	case f.shape == list || f.shape == mapShape:
		f.elem = fieldOf(name, t.Elem(), "", depth+1)
	}
	return f
}

// WithValues sets the allowed values of fields that are texts or lists of texts. The function known
// returns the allowed values of one field: in is the struct type of the field, and field is its
// JSON name. An empty result allows all values. Filter then returns an error for a comparison with
// another value, or with a pattern that matches no allowed value. Call WithValues before the fields
// are used.
func (f *Fields[R]) WithValues(known func(in reflect.Type, field string) []string) *Fields[R] {
	f.root.know(known)
	if f.stored != nil {
		for _, child := range f.stored.ordered {
			child.values = f.root.byName[child.name].values
		}
	}
	return f
}

func (f *field) know(known func(in reflect.Type, field string) []string) {
	for _, child := range f.ordered {
		for leaf := child; leaf != nil; leaf = leaf.elem {
			if leaf.shape == text {
				leaf.values = known(f.typ, child.name)
			}
			leaf.know(known)
		}
	}
}

func shapeOf(t reflect.Type) shape {
	switch {
	case t == timeType:
		return timestamp
	case t == durationType:
		return durationShape
	case t.Implements(counted) && t.Kind() == reflect.Int64:
		return integer
	case t.Implements(jsonWriter) || t.Implements(textWriter):
		return presenceOnly
	}
	switch t.Kind() {
	case reflect.String:
		return text
	case reflect.Bool:
		return boolean
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8,
		reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return integer
	case reflect.Float32, reflect.Float64:
		return number
	case reflect.Struct:
		return objectShape
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() != reflect.Uint8 {
			return list
		}
	case reflect.Map:
		if t.Key().Kind() == reflect.String {
			return mapShape
		}
	}
	return presenceOnly
}

// fill sets the fields of an object, down to maxFieldDepth. When several fields have the same name,
// it uses the least nested one, as encoding/json does.
func (f *field) fill(depth int) {
	f.byName = map[string]*field{}
	for _, sf := range reflect.VisibleFields(f.typ) {
		name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		inlined := sf.Anonymous && name == "" && structBelow(sf.Type)
		if !sf.IsExported() || name == "-" || inlined || sf.Tag.Get("query") == "-" || f.hidden(sf.Index) {
			continue
		}
		if name == "" {
			name = sf.Name
		}
		if old := f.byName[name]; old != nil && len(old.index) <= len(sf.Index) {
			continue
		}
		child := fieldOf(name, sf.Type, sf.Tag.Get("query"), depth+1)
		child.index = sf.Index
		f.byName[name], f.byName[snake(name)] = child, child
		f.ordered = append(f.ordered, child)
	}
}

// hidden reports whether a field belongs to an embedded struct whose fields are not inlined,
// because the struct has a name in JSON or the tag query:"-". index is the index of the field for
// reflect.
func (f *field) hidden(index []int) bool {
	t := f.typ
	for _, i := range index[:len(index)-1] {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		enclosing := t.Field(i)
		if name, _, _ := strings.Cut(enclosing.Tag.Get("json"), ","); name != "" || enclosing.Tag.Get("query") == "-" {
			return true
		}
		t = enclosing.Type
	}
	return false
}

func structBelow(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && shapeOf(t) == objectShape
}

// snake converts a name in lowerCamelCase to snake_case.
func snake(camel string) string {
	var b strings.Builder
	for i, r := range camel {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// names returns the names of an object's fields, for error messages.
func (f *field) names() (all []string) {
	for _, child := range f.ordered {
		all = append(all, child.name)
	}
	return all
}
