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

// foldVersion is part of the schema. Increment it when the Evolve method of an event results in
// another state than before, for example another text, or the history of waits changes, although no Go
// type and no stored name has changed.
const foldVersion = 3

// schema returns a hash of the data that the world can fold and store: the format of lines, the
// collections, the stored names of their events, the Go types of states and events, and
// foldVersion. A snapshot with another schema is not used, because it may lack data that this
// program would have folded. An event whose meaning changes gets a new stored name, which changes
// the schema.
func (w *World) schema() string {
	sum := sha256.New()
	fmt.Fprintf(sum, "fold %d\n", foldVersion)
	describeType(sum, reflect.TypeFor[line](), map[reflect.Type]bool{})
	describeType(sum, reflect.TypeFor[historyLine](), map[reflect.Type]bool{})
	for _, collection := range slices.Sorted(maps.Keys(w.folds)) {
		fmt.Fprintf(sum, "collection %s\n", collection)
		w.folds[collection].describe(sum)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// describeType writes the name, the kind, and recursively the fields with json tags of a type to w.
// met are the types that were written before; for these, it writes only the name and the kind.
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
