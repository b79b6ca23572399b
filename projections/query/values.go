package query

import (
	"reflect"
	"unique"
	"unsafe"
)

// valueRows holds the different values of a field in a block, for fields that have no column, such as
// those in lists and maps. A row can have several values.
type valueRows struct {
	dependent *rowSet // rows whose values are not in the set, because they depend on more than the row
	values    []reflect.Value
	rows      []rowSet // the rows with each value
}

// maxValues is the maximum number of different values in valueRows.
const maxValues = 256

// A valuesKey is the key of valueRows for Block.Derive.
type valuesKey struct {
	root *field
	name string
	of   valuesOf
}

// valuesOf says which values of a field are in valueRows.
type valuesOf int

const (
	noValues   valuesOf = iota
	leafValues          // the values of the field
	presences           // whether the field is set
	elements            // the elements of the list that is the field
	mapKeys             // the keys of the map that is the field
)

// inValues returns the predicate of the test t of the path's field. match reports the same for one
// row. When a scan considers a block, the predicate looks up the field's valueRows.
func (p *path) inValues(t test, match func(*candidate) bool) predicate {
	if p.scope == nil || p.depends.always() || p.shown() != nil || t.of == noValues {
		return rowPredicate(match)
	}
	key, read := unique.Make(valuesKey{p.scope.root, p.name, t.of}), *p
	return p.scope.term(match, func(s *candidate) (matches, unknown rowSet) {
		all := s.scan.derive(key, func() any { return read.valueRows(s, t.of) }).(*valueRows)
		if all == nil {
			return matches, firstRows(s.length)
		}
		for i, v := range all.values {
			if t.each(v) {
				matches.addAll(&all.rows[i])
			}
		}
		return matches, orNone(all.dependent)
	})
}

// valueRows returns the values of the path's field, of the given kind, in the block that the scan of
// s considers; nil if there are more than maxValues.
func (p *path) valueRows(s *candidate, kind valuesOf) *valueRows {
	all, known := &valueRows{}, map[any]int{}
	row := 0
	add := func(v reflect.Value) {
		key := v.Interface()
		i, ok := known[key]
		if !ok {
			i = len(all.rows)
			known[key] = i
			if all.rows = append(all.rows, rowSet{}); i < maxValues {
				all.values = append(all.values, reflect.ValueOf(key))
			}
		}
		all.rows[i].add(row)
	}
	visit := func(v reflect.Value) bool {
		switch kind {
		case presences:
			add(reflect.ValueOf(present(v)))
		case elements:
			for i := range v.Len() {
				if e := pointee(v.Index(i)); e.IsValid() {
					add(e)
				}
			}
		case mapKeys:
			for _, key := range v.MapKeys() {
				add(key)
			}
		default:
			add(v)
		}
		return false // visits all values
	}
	s.scan.each(func(i int, at unsafe.Pointer, _ string) {
		if row = i; p.depends != nil && p.depends.when(at) {
			addTo(&all.dependent, i)
			return
		}
		anyBelow(p.value(s), p.steps, visit)
	})
	if len(all.rows) > maxValues {
		return nil
	}
	return all
}
