package projections

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"time"
)

// schema is a fingerprint of what the world can fold and keep: the form of its
// rows, the collections, the stored names of their events, and the Go types of
// states and events. A
// snapshot of another schema may lack what this program would have folded, so
// it is not used. A changed meaning of an event is a new stored name, by the
// rule of the house, and so another schema.
func (w *World) schema() string {
	sum := sha256.New()
	describeType(sum, reflect.TypeFor[line](), map[reflect.Type]bool{})
	for _, collection := range slices.Sorted(maps.Keys(w.folds)) {
		fmt.Fprintf(sum, "collection %s\n", collection)
		w.folds[collection].describe(sum)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// describeType writes a type down to its basic kinds, with the tags that say
// how it is stored. A type met again is named only.
func describeType(w io.Writer, t reflect.Type, met map[reflect.Type]bool) {
	fmt.Fprintf(w, "%s %s\n", t, t.Kind())
	if met[t] || t == reflect.TypeFor[time.Time]() {
		return
	}
	met[t] = true
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			field := t.Field(i)
			fmt.Fprintf(w, "field %s %q ", field.Name, field.Tag.Get("json"))
			describeType(w, field.Type, met)
		}
	case reflect.Map:
		describeType(w, t.Key(), met)
		describeType(w, t.Elem(), met)
	case reflect.Pointer, reflect.Slice, reflect.Array:
		describeType(w, t.Elem(), met)
	}
}
