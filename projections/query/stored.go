package query

import (
	"fmt"
	"reflect"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// StoredFieldsOf returns the fields of R, the wire type of a state S, like FieldsOf. names are the
// JSON names of the top-level fields that are read from the row, because rendering copies them
// unchanged: name, createTime and updateTime from the row itself, others from the field of S with
// the same Go name. A list that filters and orders only by these fields renders only the rows that
// it returns.
//
// StoredFieldsOf panics when S has no field with the same Go name and type. The caller must ensure
// that rendering copies these fields unchanged.
func StoredFieldsOf[S domain.State, R any](names ...string) *Fields[R] {
	f := FieldsOf[R]()
	f.stored = &field{shape: objectShape, typ: reflect.TypeFor[projections.Row[S]](), byName: map[string]*field{}}
	for _, name := range names {
		shown := f.root.byName[name]
		if shown == nil {
			panic(fmt.Sprintf("query: %v has no field %q", f.root.typ, name))
		}
		child := *shown
		var same bool
		child.index, same = storedAt[S](f.root.typ.FieldByIndex(shown.index), name)
		if !same {
			panic(fmt.Sprintf("query: %v does not store %q", f.stored.typ, name))
		}
		f.stored.byName[child.name], f.stored.byName[snake(child.name)] = &child, &child
		f.stored.ordered = append(f.stored.ordered, &child)
	}
	return f
}

// storedAt returns the index, for reflect, of the field of Row[S] from which the wire type's field
// shown is copied; name is the JSON name of shown. The result is false when Row[S] has no such
// field of the same type.
func storedAt[S domain.State](shown reflect.StructField, name string) ([]int, bool) {
	row := reflect.TypeFor[projections.Row[S]]()
	switch name {
	case "name":
		return indexOf(row, "Name"), shown.Type.Kind() == reflect.String
	case "createTime":
		return indexOf(row, "CreateTime"), isTime(shown.Type)
	case "updateTime":
		return indexOf(row, "UpdateTime"), isTime(shown.Type)
	}
	in, ok := reflect.TypeFor[S]().FieldByName(shown.Name)
	return append(indexOf(row, "State"), in.Index...), ok && in.Type == shown.Type
}

func indexOf(t reflect.Type, name string) []int {
	f, _ := t.FieldByName(name)
	return f.Index
}

func isTime(t reflect.Type) bool { return t == timeType || t == reflect.TypeFor[*time.Time]() }
