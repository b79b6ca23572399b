package wire

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"anneal/domain"
)

// Drop takes what the mask names out of a JSON value.
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

// maxMaskPaths bounds what one mask may name.
const maxMaskPaths = 200

// A Mask is a set of field paths as a tree. An empty mask below a name means
// all of it.
type Mask map[string]Mask

// add puts a path in. A path that is named whole stays whole.
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

// Has tells whether the mask names the top-level field or a part of it.
func (m Mask) Has(name string) bool { _, ok := m[name]; return ok }

// ParseMask reads the paths of a mask (each text may hold several, separated
// by commas) against the wire type t. An update mask may not name what only
// the server sets, nor elements of lists. all is true for "*" and for none.
func ParseMask(v *domain.Violations, param string, t reflect.Type, texts []string, update bool) (m Mask, all bool) {
	m = Mask{}
	paths := strings.FieldsFunc(strings.Join(texts, ","), func(r rune) bool { return r == ',' })
	if len(paths) > maxMaskPaths {
		v.Add(param, "must name at most %d paths", maxMaskPaths)
		return m, false
	}
	for _, text := range paths {
		text = strings.TrimSpace(text)
		if text == "*" {
			all = true
			continue
		}
		if path := maskPath(v, param, Deref(t), text, update); path != nil {
			m.add(path)
		}
	}
	return m, all || len(paths) == 0
}

func maskPath(v *domain.Violations, param string, t reflect.Type, text string, update bool) []string {
	var path []string
	names := strings.Split(text, ".")
	for i, name := range names {
		switch KindOf(t) {
		case List:
			if update {
				v.Add(param, "%s looks into a list: name the list as a whole", Quote(text))
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
			v.Add(param, "%s looks into %s, which has no fields", Quote(text), Quote(strings.Join(names[:i], ".")))
			return nil
		}
		s := StructOf(t)
		f, known := s.Field(name)
		switch {
		case !known:
			v.Add(param, "%s is not a field of this resource; at that place there are: %s", Quote(text), OrNone(s.Names(!update)))
			return nil
		case update && f.Output:
			v.Add(param, "%s is set by the server alone: leave it out", Quote(text))
			return nil
		}
		path, t = append(path, f.Name), Deref(f.Type)
	}
	return path
}

// keep answers the parts of a JSON value that the mask names.
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

// Project answers a wire value as the read mask wants it.
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

// Present is the mask of what a body names, down to the fields of objects:
// what an update without a mask changes. Lists and maps are named as a whole.
func Present(t reflect.Type, b map[string]any) Mask {
	m := Mask{}
	for name, value := range b {
		f, _ := StructOf(t).Field(name)
		inner, nested := value.(map[string]any)
		ft := Deref(f.Type)
		if nested && len(inner) > 0 && KindOf(ft) == Object {
			m[name] = Present(ft, inner)
		} else {
			m[name] = Mask{}
		}
	}
	return m
}

// Merge answers the old object with what the mask names taken from the new
// one; what the mask names and the new one lacks is taken out.
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
