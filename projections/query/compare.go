package query

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"anneal/domain"
)

const anything = "*" // the value in field:*, which tests whether the field is set

// comparison compiles the comparison of the field at a path with a value, which is written as in
// the filter.
func comparison(p path, op, value string) (predicate, error) {
	if op == "!=" {
		equal, err := comparison(p, "=", value)
		return func(v reflect.Value) bool { return !equal(v) }, err
	}
	if p.leaf.shape == free {
		test := freeTest(p.below, op, value)
		return func(v reflect.Value) bool { return p.any(v, test) }, nil
	}
	test, err := testOf(p.leaf, p.name, op, value)
	if err != nil {
		return nil, err
	}
	return func(v reflect.Value) bool { return p.any(v, test) }, nil
}

func testOf(f *field, name, op, value string) (predicate, error) {
	if op == ":" && value == anything {
		return present, nil
	}
	switch f.shape {
	case list:
		if op != ":" {
			return nil, fmt.Errorf("%s is a list: use %s:VALUE, which tests whether any element is VALUE", name, name)
		}
		return elementTest(f, name, value)
	case mapping:
		if op != ":" {
			return nil, fmt.Errorf("%s is a map: use %s:KEY, which tests whether it has KEY, or compare %s.KEY", name, name,
				name)
		}
		key := reflect.ValueOf(value).Convert(f.typ.Key())
		return func(v reflect.Value) bool { return v.MapIndex(key).IsValid() }, nil
	case message:
		return nil, fmt.Errorf("%s is an object: compare one of its fields, %s, or use %s:*", name,
			strings.Join(f.names(), ", "), name)
	case opaque:
		return nil, fmt.Errorf("%s can only be tested with %s:*", name, name)
	case text:
		return textTest(f, name, op, value)
	case boolean:
		return booleanTest(name, op, value)
	case instant:
		return instantTest(name, op, value)
	case span:
		return spanTest(f, name, op, value)
	}
	return numberTest(f, name, op, value)
}

// elementTest returns a predicate that reports whether any element of a list equals value or, when
// the elements are lists or maps, contains value. name is the field's name, for errors.
func elementTest(f *field, name, value string) (predicate, error) {
	switch {
	case f.elem.shape == message:
		return nil, fmt.Errorf("%s is a list of objects: compare one of their fields, %s, as in %s.%s:VALUE",
			name, strings.Join(f.elem.names(), ", "), name, f.elem.ordered[0].name)
	case f.elem.shape == opaque:
		return nil, fmt.Errorf("%s can only be tested with %s:*", name, name)
	}
	op := "="
	if !f.elem.shape.scalar() {
		op = ":"
	}
	test, err := testOf(f.elem, name, op, value)
	if err != nil {
		return nil, err
	}
	return func(v reflect.Value) bool {
		for i := range v.Len() {
			if e := pointee(v.Index(i)); e.IsValid() && test(e) {
				return true
			}
		}
		return false
	}, nil
}

// present reports whether a field is set: its value is not the zero value of its type, and not an
// empty list or map. An object is set even if all its fields are zero.
func present(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() > 0
	case reflect.Interface:
		return !v.IsNil()
	case reflect.Struct:
		return v.Type() != timeType || !v.IsZero() // an object is set even if all its fields are zero
	}
	return !v.IsZero()
}

func textTest(f *field, name, op, value string) (predicate, error) {
	match := textMatch(op, value)
	if (op == "=" || op == ":") && value != "" && len(f.values) > 0 && !slices.ContainsFunc(f.values, match) {
		return nil, fmt.Errorf("%s has no value %q%s", name, clip(value),
			domain.UnknownName(value, "it is one of ", f.values))
	}
	return func(v reflect.Value) bool { return match(v.String()) }, nil
}

func textMatch(op, value string) func(string) bool {
	switch op {
	case "=":
		if !strings.Contains(value, anything) {
			return func(s string) bool { return s == value }
		}
		pieces := strings.Split(value, anything)
		return func(s string) bool { return wild(s, pieces) }
	case ":":
		return contains(value)
	}
	holds := ordering(op)
	return func(s string) bool { return holds(strings.Compare(s, value)) }
}

// wild reports whether a text matches a pattern in which * stands for any characters. pieces are
// the parts of the pattern between the stars.
func wild(s string, pieces []string) bool {
	first, last := pieces[0], pieces[len(pieces)-1]
	if len(s) < len(first)+len(last) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, last) {
		return false
	}
	s = s[len(first) : len(s)-len(last)]
	for _, piece := range pieces[1 : len(pieces)-1] {
		_, after, found := strings.Cut(s, piece)
		if !found {
			return false
		}
		s = after
	}
	return true
}

// contains returns a function that reports whether a text contains value, ignoring case. A * in
// value stands for any characters.
func contains(value string) func(string) bool {
	pieces := strings.Split(strings.ToLower(anything+value+anything), anything)
	if len(pieces) == 3 && isASCII(value) {
		return func(s string) bool { return containsFold(s, pieces[1]) }
	}
	return func(s string) bool { return wild(strings.ToLower(s), pieces) }
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// containsFold reports whether s contains lower, which is lower-case ASCII, ignoring case. It does
// not allocate.
func containsFold(s, lower string) bool {
	for i := 0; i+len(lower) <= len(s); i++ {
		k := 0
		for k < len(lower) && (s[i+k] == lower[k] || s[i+k]|0x20 == lower[k] && 'A' <= s[i+k] && s[i+k] <= 'Z') {
			k++
		}
		if k == len(lower) {
			return true
		}
	}
	return false
}

func booleanTest(name, op, value string) (predicate, error) {
	if op != "=" && op != ":" {
		return nil, fmt.Errorf("%s is true or false: compare it with = or !=", name)
	}
	if value != "true" && value != "false" {
		return nil, fmt.Errorf("%s is true or false: it cannot be compared with %q", name, clip(value))
	}
	return func(v reflect.Value) bool { return v.Bool() == (value == "true") }, nil
}

func instantTest(name, op, value string) (predicate, error) {
	at, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		if at, err = time.Parse(time.DateOnly, value); err != nil {
			return nil, fmt.Errorf("%s is a time: compare it with one like \"2026-03-01T00:00:00Z\", not with %q", name,
				clip(value))
		}
	}
	holds := ordering(op)
	return func(v reflect.Value) bool {
		t := instantOf(v)
		return !t.IsZero() && holds(t.Compare(at))
	}, nil
}

func spanTest(f *field, name, op, value string) (predicate, error) {
	want, err := time.ParseDuration(value)
	if err != nil {
		return nil, fmt.Errorf("%s is a duration: compare it with one like 30s, not with %q", name, clip(value))
	}
	holds := ordering(op)
	return func(v reflect.Value) bool {
		d, ok := spanOf(f, v)
		return ok && holds(cmp.Compare(d, want))
	}, nil
}

func numberTest(f *field, name, op, value string) (predicate, error) {
	holds := ordering(op)
	whole, notWhole := strconv.ParseInt(value, 10, 64)
	if notWhole == nil && f.shape == integer {
		return func(v reflect.Value) bool { return holds(cmp.Compare(integerOf(v), whole)) }, nil
	}
	want, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(want) {
		return nil, fmt.Errorf("%s is %s: it cannot be compared with %q", name, f.shape, clip(value))
	}
	if f.shape == integer {
		return func(v reflect.Value) bool { return holds(cmp.Compare(float64(integerOf(v)), want)) }, nil
	}
	return func(v reflect.Value) bool { return holds(cmp.Compare(v.Float(), want)) }, nil
}

// ordering returns a function that reports whether an operator accepts the result of a comparison:
// -1, 0 or 1.
func ordering(op string) func(int) bool {
	switch op {
	case "<":
		return func(c int) bool { return c < 0 }
	case "<=":
		return func(c int) bool { return c <= 0 }
	case ">":
		return func(c int) bool { return c > 0 }
	case ">=":
		return func(c int) bool { return c >= 0 }
	}
	return func(c int) bool { return c == 0 }
}
