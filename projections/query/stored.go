package query

import (
	"fmt"
	"reflect"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// StoredFieldsOf reads the fields of R, the wire type of a state S, and says
// which of its outermost ones render takes from the row unchanged, by their
// names on the wire: name, createTime and updateTime are the row's, any other
// is the field of S that Go calls the same. A list that filters and orders by
// these alone need not render what it does not show.
//
// It panics when S has no such field of the same type. That render does not
// change it is the caller's promise.
func StoredFieldsOf[S domain.State, R any](names ...string) *Fields[R] {
	f := FieldsOf[R]()
	f.stored = &field{shape: message, typ: reflect.TypeFor[projections.Row[S]](), byName: map[string]*field{}, partial: true}
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

// storedAt is the way from a row to the field that the wire shows as shown;
// false when there is none of its type.
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
