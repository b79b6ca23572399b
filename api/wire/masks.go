package wire

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"anneal/domain"
)

// Drop removes the fields of the mask from a JSON value.
func (m Mask) Drop(value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, below := range m {
			if len(below) == 0 {
				delete(v, name)
			} else {
				below.Drop(v[name])
			}
		}
	case []any:
		for _, element := range v {
			m.Drop(element)
		}
	}
}

// maxMaskPaths is the maximum number of paths in a mask.
const maxMaskPaths = 200

// A Mask is a set of field paths, stored as a tree of field names. An empty Mask as the value of a
// name means the whole field.
type Mask map[string]Mask

// add adds a path to the mask. If the mask contains the whole of an enclosing field already,
// nothing changes.
func (m Mask) add(path []string) {
	for i, name := range path {
		below, known := m[name]
		switch {
		case i == len(path)-1:
			m[name] = Mask{}
			return
		case known && len(below) == 0:
			return
		case !known:
			below = Mask{}
			m[name] = below
		}
		m = below
	}
}

// Has reports whether the mask contains the top-level field name, or a part of it.
func (m Mask) Has(name string) bool { _, ok := m[name]; return ok }

// ParseReadMask parses a read mask for the wire type t. Each text may contain several paths,
// separated by commas. Without a path, and for "*", the mask is empty, which selects all fields.
func ParseReadMask(v *domain.Violations, t reflect.Type, texts []string) Mask {
	m, all := parseMask(v, "readMask", t, texts, false)
	if all {
		return Mask{}
	}
	return m
}

// ParseUpdateMask parses an update mask for the wire type t. Each text may contain several paths,
// separated by commas. Without a path, the mask has the fields that the body b contains, so that
// absent fields keep their values. "*" means all fields that a request may set, and must be the
// only path. Output-only fields and fields of list elements are violations.
func ParseUpdateMask(v *domain.Violations, t reflect.Type, texts []string, b Body) Mask {
	m, all := parseMask(v, "updateMask", t, texts, true)
	switch {
	case all && len(m) > 0:
		v.Add("updateMask", `"*" means all fields: give it without other paths`)
	case all:
		return settable(t)
	case len(m) == 0:
		return present(t, b)
	}
	return m
}

// parseMask returns the mask of the paths in texts. all reports whether one of the paths is "*".
// update states whether it is an update mask.
func parseMask(v *domain.Violations, param string, t reflect.Type, texts []string, update bool) (m Mask, all bool) {
	m = Mask{}
	paths := strings.FieldsFunc(strings.Join(texts, ","), func(r rune) bool { return r == ',' })
	if len(paths) > maxMaskPaths {
		v.Add(param, "must name at most %d paths, not %d", maxMaskPaths, len(paths))
		return m, false
	}
	for _, text := range paths {
		switch text = strings.TrimSpace(text); text {
		case "":
		case "*":
			all = true
		default:
			if path := maskPath(v, param, Deref(t), text, update); path != nil {
				m.add(path)
			}
		}
	}
	return m, all
}

func maskPath(v *domain.Violations, param string, t reflect.Type, text string, update bool) []string {
	var path []string
	names := strings.Split(text, ".")
	for i, name := range names {
		switch KindOf(t) {
		case List:
			if update {
				v.Add(param, "%s is a field of a list's elements, which a mask cannot select: give the path of the "+
					"list", Quote(text))
				return nil
			}
			t = Deref(t.Elem())
		}
		switch KindOf(t) {
		case Map:
			path, t = append(path, name), Deref(t.Elem())
			continue
		case Object:
		default:
			v.Add(param, "%s is not a field: %s has no fields; give the path of a "+
				"field", Quote(text), Quote(strings.Join(names[:i], ".")))
			return nil
		}
		s := StructOf(t)
		f, known := s.Field(name)
		switch {
		case !known:
			v.Add(param, "%s is not a field of this resource%s", Quote(text),
				domain.UnknownName(name, "valid fields: ", s.Names(!update)))
			return nil
		case update && f.Output:
			v.Add(param, "%s can only be set by the server: leave it out", Quote(text))
			return nil
		}
		path, t = append(path, f.Name), Deref(f.Type)
	}
	return path
}

// keep returns a JSON value with only the fields in the mask.
func (m Mask) keep(value any) any {
	if len(m) == 0 {
		return value
	}
	switch v := value.(type) {
	case map[string]any:
		kept := map[string]any{}
		for name, below := range m {
			if part, ok := v[name]; ok {
				kept[name] = below.keep(part)
			}
		}
		return kept
	case []any:
		kept := make([]any, len(v))
		for i, element := range v {
			kept[i] = m.keep(element)
		}
		return kept
	}
	return value
}

// Project returns a wire value with only the fields in the mask. If the mask is empty, it returns
// the value unchanged.
func (m Mask) Project(value any) (any, error) {
	if len(m) == 0 {
		return value, nil
	}
	data, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	tree, err := Parse(data)
	return m.keep(tree), err
}

// present returns a mask of all fields that the body b of type t contains. It has the paths of
// fields in nested objects, but lists and maps only as a whole.
func present(t reflect.Type, b map[string]any) Mask {
	m := Mask{}
	for name, value := range b {
		f, _ := StructOf(t).Field(name)
		inner, nested := value.(map[string]any)
		ft := Deref(f.Type)
		if nested && len(inner) > 0 && KindOf(ft) == Object {
			m[name] = present(ft, inner)
		} else {
			m[name] = Mask{}
		}
	}
	return m
}

// settable returns a mask of all fields of the type t that a request may set.
func settable(t reflect.Type) Mask {
	m := Mask{}
	for _, f := range StructOf(t).Fields {
		if !f.Output {
			m[f.Name] = Mask{}
		}
	}
	return m
}

// Merge returns a copy of the object old, in which the fields of the mask have the values of the
// object given. It removes fields of the mask that are missing in given.
func (m Mask) Merge(old, given map[string]any) map[string]any {
	merged := maps.Clone(old)
	if merged == nil {
		merged = map[string]any{}
	}
	for name, below := range m {
		value, ok := given[name]
		inner, nested := value.(map[string]any)
		switch {
		case len(below) > 0 && (nested || !ok):
			before, _ := merged[name].(map[string]any)
			merged[name] = below.Merge(before, inner)
		case ok:
			merged[name] = value
		default:
			delete(merged, name)
		}
	}
	return merged
}

func SortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
