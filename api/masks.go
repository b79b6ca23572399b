package api

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"anneal/domain"
)

// maxMaskPaths bounds what one mask may name.
const maxMaskPaths = 200

// A mask is a set of field paths as a tree. An empty mask below a name means
// all of it.
type mask map[string]mask

// add puts a path in. A path that is named whole stays whole.
func (m mask) add(path []string) {
	for i, name := range path {
		below, known := m[name]
		switch {
		case i == len(path)-1:
			m[name] = mask{}
			return
		case known && len(below) == 0:
			return
		case !known:
			below = mask{}
			m[name] = below
		}
		m = below
	}
}

// has tells whether the mask names the top-level field or a part of it.
func (m mask) has(name string) bool { _, ok := m[name]; return ok }

// parseMask reads the paths of a mask (each text may hold several, separated
// by commas) against the wire type t. An update mask may not name what only
// the server sets, nor elements of lists. all is true for "*" and for none.
func parseMask(v *domain.Violations, param string, t reflect.Type, texts []string, update bool) (m mask, all bool) {
	m = mask{}
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
		if path := maskPath(v, param, plain(t), text, update); path != nil {
			m.add(path)
		}
	}
	return m, all || len(paths) == 0
}

func maskPath(v *domain.Violations, param string, t reflect.Type, text string, update bool) []string {
	var path []string
	names := strings.Split(text, ".")
	for i, name := range names {
		switch sortOf(t) {
		case listValue:
			if update {
				v.Add(param, "%s looks into a list: name the list as a whole", quoted(text))
				return nil
			}
			t = plain(t.Elem())
		}
		switch sortOf(t) {
		case mapValue:
			path, t = append(path, name), plain(t.Elem())
			continue
		case objectValue:
		default:
			v.Add(param, "%s looks into %s, which has no fields", quoted(text), quoted(strings.Join(names[:i], ".")))
			return nil
		}
		s := shapeOf(t)
		f, known := s.field(name)
		switch {
		case !known:
			v.Add(param, "%s is not a field of this resource; at that place there are: %s", quoted(text), orNone(s.names(!update)))
			return nil
		case update && f.output:
			v.Add(param, "%s is set by the server alone: leave it out", quoted(text))
			return nil
		}
		path, t = append(path, f.name), plain(f.typ)
	}
	return path
}

// keep answers the parts of a JSON value that the mask names.
func (m mask) keep(value any) any {
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

// project answers a wire value as the read mask wants it.
func (m mask) project(value any) (any, error) {
	if len(m) == 0 {
		return value, nil
	}
	data, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	tree, err := parseJSON(data)
	return m.keep(tree), err
}

// present is the mask of what a body names, down to the fields of objects:
// what an update without a mask changes. Lists and maps are named as a whole.
func present(t reflect.Type, b map[string]any) mask {
	m := mask{}
	for name, value := range b {
		f, _ := shapeOf(t).field(name)
		inner, nested := value.(map[string]any)
		ft := plain(f.typ)
		if nested && len(inner) > 0 && sortOf(ft) == objectValue {
			m[name] = present(ft, inner)
		} else {
			m[name] = mask{}
		}
	}
	return m
}

// merge answers the old object with what the mask names taken from the new
// one; what the mask names and the new one lacks is taken out.
func (m mask) merge(old, given map[string]any) map[string]any {
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
			merged[name] = below.merge(before, inner)
		case ok:
			merged[name] = value
		default:
			delete(merged, name)
		}
	}
	return merged
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
