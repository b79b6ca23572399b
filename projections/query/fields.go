package query

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"time"
	"unicode"
)

// A shape is how a field's values compare.
type shape int

const (
	opaque shape = iota // cannot be looked into; present or not
	text                // and enumerations
	boolean
	integer // 64 bit; counts that the wire writes as decimal strings too
	number
	instant // RFC 3339
	span    // a duration
	message // has fields
	list
	mapping // by text keys
	free    // any JSON, whose fields nobody declared
)

var shapeNames = [...]string{"something that can only be asked for with :*", "text", "true or false", "a whole number", "a number",
	"a time", "a duration", "an object", "a list", "a map", "any JSON"}

func (s shape) String() string { return shapeNames[s] }

func (s shape) scalar() bool { return s >= text && s <= span }

// Fields is what filters and orders may name of a wire type R, a struct with
// json tags. Names are the wire's (createTime) or their snake case
// (create_time); embedded structs are part of the one that embeds them, as in
// JSON. A field tagged query:"-" cannot be named; text tagged query:"duration"
// compares as the duration that it spells.
type Fields[R any] struct {
	root   *field
	stored *field // some of them, to be read off a row; see StoredFieldsOf
}

// A field is one type in the tree of R's fields, and how to get there.
type field struct {
	name    string // on the wire
	shape   shape
	index   []int             // from the struct around it, as reflect counts
	byName  map[string]*field // of a message, under both spellings
	ordered []*field          // of a message
	elem    *field            // of a list or a mapping
	typ     reflect.Type      // without pointers
	parsed  bool              // a span that is spelled as text
	partial bool              // a message of which only some fields are known
	values  []string          // that a text may have; none is any
}

const maxFieldDepth = 8 // of the tree: types may contain themselves

// FieldsOf reads the fields of R; call it once per type. R is a struct.
func FieldsOf[R any]() *Fields[R] {
	t := reflect.TypeFor[R]()
	if t.Kind() != reflect.Struct {
		panic("query: FieldsOf " + t.String() + ", which is no struct")
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
		f.shape, f.parsed = span, true
	case depth == maxFieldDepth:
		f.shape = opaque
	case f.shape == message:
		f.fill(depth)
	case f.shape == list || f.shape == mapping:
		f.elem = fieldOf(name, t.Elem(), "", depth+1)
	}
	return f
}

// WithValues says which values texts have, and the elements of lists of texts,
// by the type around the field and its name on the wire; none is any. A filter
// that asks for another, or for what none of them matches, is refused. Call it
// before the fields are used.
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
		return instant
	case t == durationType:
		return span
	case t.Implements(counted) && t.Kind() == reflect.Int64:
		return integer
	case t.Implements(jsonWriter) || t.Implements(textWriter):
		return opaque
	}
	switch t.Kind() {
	case reflect.String:
		return text
	case reflect.Bool:
		return boolean
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return integer
	case reflect.Float32, reflect.Float64:
		return number
	case reflect.Struct:
		return message
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() != reflect.Uint8 {
			return list
		}
	case reflect.Map:
		if t.Key().Kind() == reflect.String {
			return mapping
		}
	}
	return opaque
}

// fill finds the fields of a message. Of several with one name the shallowest
// counts, as in JSON.
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

// hidden reports whether the way to a promoted field leads through one that JSON
// does not inline: that one has a name of its own.
func (f *field) hidden(index []int) bool {
	t := f.typ
	for _, i := range index[:len(index)-1] {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		around := t.Field(i)
		if name, _, _ := strings.Cut(around.Tag.Get("json"), ","); name != "" || around.Tag.Get("query") == "-" {
			return true
		}
		t = around.Type
	}
	return false
}

func structBelow(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && shapeOf(t) == message
}

// snake is a lowerCamelCase name in snake case.
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

// names lists the fields of a message, for messages to people.
func (f *field) names() string {
	var all []string
	for _, child := range f.ordered {
		all = append(all, child.name)
	}
	return strings.Join(all, ", ")
}
