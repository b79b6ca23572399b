package wire

import "reflect"

// walkGiven calls visit for each known field of the wire type t to which a JSON value gives a value, with
// the name of the type that has the field and the path of the field. It descends into the fields for which
// visit returns true. Elements of lists and maps are left out.
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
