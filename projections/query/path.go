package query

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"
)

// A path leads from a struct to one field in it.
type path struct {
	name  string // as on the wire, dotted
	leaf  *field
	steps []step
	below []string // the names below a free leaf
}

// A step goes one level down: into the field of a struct, to the value of a
// key, or to each element of a list.
type step struct {
	index []int
	key   *reflect.Value
	each  bool
}

// resolve finds the field that a dotted name means. What is wrong with the
// name comes back as a sentence.
func (f *field) resolve(parts []string) (path, error) {
	p := path{leaf: f}
	for i, part := range parts {
		for p.leaf.shape == list {
			p.steps = append(p.steps, step{each: true})
			p.leaf = p.leaf.elem
		}
		switch p.leaf.shape {
		case message:
			child := p.leaf.byName[part]
			if child == nil {
				return p, unknownField(p.leaf, parts[:i+1])
			}
			p.steps = append(p.steps, step{index: child.index})
			p.leaf, part = child, child.name
		case mapping:
			key := reflect.ValueOf(part).Convert(p.leaf.typ.Key())
			p.steps = append(p.steps, step{key: &key})
			p.leaf = p.leaf.elem
		case free:
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
	if in.names() == "" {
		return fmt.Errorf("there is no field %q", clip(strings.Join(parts, ".")))
	}
	return fmt.Errorf("there is no field %q; the fields are %s", clip(strings.Join(parts, ".")), in.names())
}

// at is the value at the end of a path without lists, below v; not valid where
// there is none.
func (p *path) at(v reflect.Value) reflect.Value {
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

// any reports whether a value at the end of the path, below v, passes the test.
// Where something on the way is absent there is no value.
func (p *path) any(v reflect.Value, test func(reflect.Value) bool) bool {
	return anyBelow(v, p.steps, test)
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

// fieldAt is the field of a struct; not valid when an embedded pointer on the
// way to it is nil.
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
		v = v.Elem() // not valid when nil
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

// instantOf and spanOf read what reflect has no accessor for.
func instantOf(v reflect.Value) time.Time {
	if v.CanAddr() {
		return *v.Addr().Interface().(*time.Time)
	}
	return v.Interface().(time.Time)
}

func spanOf(f *field, v reflect.Value) (time.Duration, bool) {
	if !f.parsed {
		return time.Duration(v.Int()), true
	}
	d, err := time.ParseDuration(v.String())
	return d, err == nil
}

// integerOf reads a whole number. An unsigned one of more than 63 bits is the
// greatest that there is.
func integerOf(v reflect.Value) int64 {
	if v.CanUint() {
		return int64(min(v.Uint(), math.MaxInt64))
	}
	return v.Int()
}

const clipped = 60 // characters of the caller's text that a message repeats

func clip(s string) string {
	if r := []rune(s); len(r) > clipped {
		return string(r[:clipped]) + "…"
	}
	return s
}
