package query

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"anneal/domain"
)

// A path describes where a candidate has the value of a field.
type path struct {
	root     reflect.Type // Go type of the struct from which the steps descend
	renderer int          // renderer that sets the field, or storedField: see candidate.at
	name     string       // dotted name of the field in JSON
	leaf     *field
	steps    []step
	below    []string // parts of the name inside the JSON value, if the steps lead to a field of the shape anyJSON
	// column is the index of the field's column in candidate.columns; -1 if there is none.
	column  int
	scope   *scope
	depends *dependence // of the top-level field
}

// A step of a path descends one level: to a field of a struct, by index; to a value of a map, by
// key; or, if each is set, to every element of a list.
type step struct {
	index []int
	key   *reflect.Value
	each  bool
}

// resolve returns the path to the field whose dotted name has the given parts. The error is for the
// user of the API.
func (f *field) resolve(parts []string) (path, error) {
	p := path{root: f.typ, leaf: f, column: -1}
	for i, part := range parts {
		for p.leaf.shape == list {
			p.steps = append(p.steps, step{each: true})
			p.leaf = p.leaf.elem
		}
		switch p.leaf.shape {
		case objectShape:
			child := p.leaf.byName[part]
			if child == nil {
				return p, unknownField(p.leaf, parts[:i+1])
			}
			p.steps = append(p.steps, step{index: child.index})
			p.leaf, part = child, child.name
		case mapShape:
			key := reflect.ValueOf(part).Convert(p.leaf.typ.Key())
			p.steps = append(p.steps, step{key: &key})
			p.leaf = p.leaf.elem
		case anyJSON:
			p.below = parts[i:]
			p.name = strings.Join(parts, ".")
			return p, nil
		default:
			return p, fmt.Errorf("%s is %s and has no field %q", p.name, p.leaf.shape, clip(part))
		}
		if i > 0 {
			p.name += "."
		}
		p.name += part
	}
	return p, nil
}

func unknownField(in *field, parts []string) error {
	names := in.names()
	if len(names) == 0 {
		return fmt.Errorf("there is no field %q, because the object has none", clip(strings.Join(parts, ".")))
	}
	return fmt.Errorf("there is no field %q%s", clip(strings.Join(parts, ".")),
		domain.UnknownName(parts[len(parts)-1], "the fields are ", names))
}

// value returns the struct of a candidate at which the path's steps begin.
func (p *path) value(s *candidate) reflect.Value {
	return reflect.NewAt(p.root, s.at(p.renderer)).Elem()
}

// at returns the value of the path's field in a candidate; an invalid Value if the field is absent.
// The path must not lead through a list.
func (p *path) at(candidate *candidate) reflect.Value {
	v := p.value(candidate)
	for _, s := range p.steps {
		if v = pointee(v); !v.IsValid() {
			return v
		}
		if s.key != nil {
			v = v.MapIndex(*s.key)
		} else {
			v = fieldAt(v, s.index)
		}
		if !v.IsValid() {
			return v
		}
	}
	return pointee(v)
}

// matches returns a predicate that reports whether the test t is true for any value of the path's
// field in a candidate. It is false if the field is absent.
func (p *path) matches(t test) predicate {
	match := func(s *candidate) bool { return anyBelow(p.value(s), p.steps, t.value) }
	if at, ok := p.locate(); ok && t.address != nil {
		match = func(s *candidate) bool {
			value := at.find(s.at(p.renderer))
			return value != nil && t.address(value)
		}
	}
	if p.column < 0 || t.column == nil {
		return p.inValues(t, match)
	}
	index, shown := p.column, p.shown()
	return p.scope.term(match, func(s *candidate) (matches, unknown rowSet) {
		c := s.columns[index]
		switch {
		case c == nil:
			return matches, firstRows(s.length)
		case shown == nil:
			matches = c.matching(s.length, t.column)
		default:
			texts := s.shownBy(index, c, shown)
			matches = c.matching(s.length, func(_ *column, code int) bool { return t.text(texts[code]) })
		}
		return matches.without(c.dependent), orNone(c.dependent)
	})
}

// shown returns the function that returns the value of the path's field for a text in its column; nil
// if the column has the values themselves.
func (p *path) shown() func(stored string) string {
	if p.depends == nil {
		return nil
	}
	return p.depends.shown
}

func anyBelow(v reflect.Value, steps []step, test func(reflect.Value) bool) bool {
	for i, s := range steps {
		if v = pointee(v); !v.IsValid() {
			return false
		}
		switch {
		case s.each:
			for k := range v.Len() {
				if anyBelow(v.Index(k), steps[i+1:], test) {
					return true
				}
			}
			return false
		case s.key != nil:
			v = v.MapIndex(*s.key)
			if !v.IsValid() {
				return false
			}
		default:
			if v = fieldAt(v, s.index); !v.IsValid() {
				return false
			}
		}
	}
	v = pointee(v)
	return v.IsValid() && test(v)
}

// fieldAt returns the field of the struct v that index selects. The value is invalid when an
// embedded pointer on the way to the field is nil.
func fieldAt(v reflect.Value, index []int) reflect.Value {
	for _, i := range index {
		if v = pointee(v); !v.IsValid() {
			return v
		}
		v = v.Field(i)
	}
	return v
}

func pointee(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Pointer {
		v = v.Elem() // the zero reflect.Value if the pointer is nil
		if !v.IsValid() {
			return v
		}
	}
	return v
}

// lists reports whether the path leads through a list.
func (p *path) lists() bool {
	for _, s := range p.steps {
		if s.each {
			return true
		}
	}
	return false
}

// timestampOf returns the time in v, for which reflect has no accessor.
func timestampOf(v reflect.Value) time.Time {
	if v.CanAddr() {
		return *v.Addr().Interface().(*time.Time)
	}
	return v.Interface().(time.Time)
}

func durationOf(f *field, v reflect.Value) (time.Duration, bool) {
	if !f.parsed {
		return time.Duration(v.Int()), true
	}
	d, err := time.ParseDuration(v.String())
	return d, err == nil
}

// integerOf returns the integer in v. An unsigned integer above math.MaxInt64 is returned as
// math.MaxInt64.
func integerOf(v reflect.Value) int64 {
	if v.CanUint() {
		return int64(min(v.Uint(), math.MaxInt64))
	}
	return v.Int()
}

const clipped = 60 // maximum number of characters of the user's text in an error message

func clip(s string) string {
	if r := []rune(s); len(r) > clipped {
		return string(r[:clipped]) + "…"
	}
	return s
}
