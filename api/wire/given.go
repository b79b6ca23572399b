package wire

import "reflect"

// walkGiven calls visit for each known field of the wire type t that a JSON value sets: with the
// name of the type that has the field, the field, its path and its value. If visit returns true,
// walkGiven also visits the fields of the field's value. It does not visit elements of lists and
// maps.
func walkGiven(t reflect.Type, value any, path string, visit func(owner string, f Field, at string, one any) bool) {
	given, ok := value.(map[string]any)
	if !ok || KindOf(t) != Object {
		return
	}
	s := StructOf(t)
	for key, one := range given {
		f, known := s.Field(key)
		if !known {
			continue
		}
		if at := Join(path, f.Name); visit(t.Name(), f, at, one) {
			walkGiven(Deref(f.Type), one, at, visit)
		}
	}
}
