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
	"unsafe"

	"anneal/domain"
)

const anything = "*" // the value in field:*, which tests whether the field is set

// comparison compiles the comparison of the field at a path with a value, which is written as in
// the filter.
func comparison(p path, op, value string) (predicate, error) {
	if op == "!=" {
		equal, err := comparison(p, "=", value)
		return func(s *subject) bool { return !equal(s) }, err
	}
	if p.leaf.shape == free {
		return p.matches(freeTest(p.below, op, value)), nil
	}
	t, err := testOf(p.leaf, p.name, op, value)
	if err != nil {
		return nil, err
	}
	return p.matches(t), nil
}

// A test reports whether a value of a field matches.
type test struct {
	value  func(reflect.Value) bool    // v is not a pointer
	at     func(unsafe.Pointer) bool   // the same for the address of a value; nil if there is only value
	column func(c *column, i int) bool // the same for a value in a column; nil if it has none
}

// scalarTest returns a test that reports whether holds returns true for a value. T has the memory
// layout of the values, which read returns from reflection, and column from a column.
func scalarTest[T any](read func(reflect.Value) T, column func(*column, int) T, holds func(T) bool) test {
	return test{value: func(v reflect.Value) bool { return holds(read(v)) },
		at:     func(at unsafe.Pointer) bool { return holds(*(*T)(at)) },
		column: columnTest(column, holds)}
}

func columnTest[T any](read func(*column, int) T, holds func(T) bool) func(*column, int) bool {
	return func(c *column, i int) bool { return holds(read(c, i)) }
}

func testOf(f *field, name, op, value string) (test, error) {
	if op == ":" && value == anything {
		return presence(f), nil
	}
	switch f.shape {
	case list:
		if op != ":" {
			return test{}, fmt.Errorf("%s is a list: use %s:VALUE, which tests whether any element is VALUE", name, name)
		}
		return elementTest(f, name, value)
	case mapping:
		if op != ":" {
			return test{}, fmt.Errorf("%s is a map: use %s:KEY, which tests whether it has KEY, or compare %s.KEY", name, name,
				name)
		}
		key := reflect.ValueOf(value).Convert(f.typ.Key())
		return test{value: func(v reflect.Value) bool { return v.MapIndex(key).IsValid() }}, nil
	case message:
		return test{}, fmt.Errorf("%s is an object: compare one of its fields, %s, or use %s:*", name,
			strings.Join(f.names(), ", "), name)
	case opaque:
		return test{}, fmt.Errorf("%s can only be tested with %s:*", name, name)
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
func elementTest(f *field, name, value string) (test, error) {
	switch {
	case f.elem.shape == message:
		return test{}, fmt.Errorf("%s is a list of objects: compare one of their fields, %s, as in %s.%s:VALUE",
			name, strings.Join(f.elem.names(), ", "), name, f.elem.ordered[0].name)
	case f.elem.shape == opaque:
		return test{}, fmt.Errorf("%s can only be tested with %s:*", name, name)
	}
	op := "="
	if !f.elem.shape.scalar() {
		op = ":"
	}
	t, err := testOf(f.elem, name, op, value)
	if err != nil {
		return test{}, err
	}
	return test{value: func(v reflect.Value) bool {
		for i := range v.Len() {
			if e := pointee(v.Index(i)); e.IsValid() && t.value(e) {
				return true
			}
		}
		return false
	}}, nil
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

// presence returns the test of field:*.
func presence(f *field) test {
	t := test{value: present}
	switch f.shape {
	case text:
		t.at = func(at unsafe.Pointer) bool { return *(*string)(at) != "" }
		t.column = func(c *column, i int) bool { return c.textAt(i) != "" }
	case boolean, integer, span:
		t.column = func(c *column, i int) bool { return c.wholeAt(i) != 0 }
	case number:
		t.column = func(c *column, i int) bool { return c.realAt(i) != 0 }
	case instant:
		t.at = func(at unsafe.Pointer) bool { return !(*time.Time)(at).IsZero() }
		t.column = func(*column, int) bool { return true } // a zero time is absent
	}
	return t
}

func textTest(f *field, name, op, value string) (test, error) {
	match := textMatch(op, value)
	if (op == "=" || op == ":") && value != "" && len(f.values) > 0 && !slices.ContainsFunc(f.values, match) {
		return test{}, fmt.Errorf("%s has no value %q%s", name, clip(value),
			domain.UnknownName(value, "it is one of ", f.values))
	}
	return scalarTest(reflect.Value.String, (*column).textAt, match), nil
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
	return comparing(op, value)
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

func booleanTest(name, op, value string) (test, error) {
	if op != "=" && op != ":" {
		return test{}, fmt.Errorf("%s is true or false: compare it with = or !=", name)
	}
	if value != "true" && value != "false" {
		return test{}, fmt.Errorf("%s is true or false: it cannot be compared with %q", name, clip(value))
	}
	want := value == "true"
	return scalarTest(reflect.Value.Bool, (*column).boolAt, func(b bool) bool { return b == want }), nil
}

func instantTest(name, op, value string) (test, error) {
	at, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		if at, err = time.Parse(time.DateOnly, value); err != nil {
			return test{}, fmt.Errorf("%s is a time: compare it with one like \"2026-03-01T00:00:00Z\", not with %q", name,
				clip(value))
		}
	}
	holds := ordering(op)
	return scalarTest(instantOf, (*column).timeAt, func(t time.Time) bool {
		return !t.IsZero() && holds(t.Compare(at))
	}), nil
}

func spanTest(f *field, name, op, value string) (test, error) {
	want, err := time.ParseDuration(value)
	if err != nil {
		return test{}, fmt.Errorf("%s is a duration: compare it with one like 30s, not with %q", name, clip(value))
	}
	holds := ordering(op)
	if f.parsed {
		return scalarTest(reflect.Value.String, (*column).textAt, func(s string) bool {
			d, err := time.ParseDuration(s)
			return err == nil && holds(cmp.Compare(d, want))
		}), nil
	}
	return scalarTest(reflect.Value.Int, (*column).wholeAt, comparing(op, int64(want))), nil
}

func numberTest(f *field, name, op, value string) (test, error) {
	whole, notWhole := strconv.ParseInt(value, 10, 64)
	if notWhole == nil && f.shape == integer {
		return integerTest(f, comparing(op, whole)), nil
	}
	want, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(want) {
		return test{}, fmt.Errorf("%s is %s: it cannot be compared with %q", name, f.shape, clip(value))
	}
	holds := ordering(op)
	if f.shape == integer {
		return integerTest(f, func(n int64) bool { return holds(cmp.Compare(float64(n), want)) }), nil
	}
	t := scalarTest(reflect.Value.Float, (*column).realAt, func(x float64) bool { return holds(cmp.Compare(x, want)) })
	if f.typ.Kind() != reflect.Float64 {
		t.at = nil
	}
	return t, nil
}

func integerTest(f *field, holds func(int64) bool) test {
	t := scalarTest(integerOf, (*column).wholeAt, holds)
	if !isInt64(f.typ) {
		t.at = nil
	}
	return t
}

// isInt64 reports whether the values of a type have the memory layout of an int64.
func isInt64(t reflect.Type) bool {
	return t.Kind() == reflect.Int64 || t.Kind() == reflect.Int && t.Size() == reflect.TypeFor[int64]().Size()
}

// comparing returns a function that reports whether an operator accepts a value on its left and want
// on its right.
func comparing[T string | int64](op string, want T) func(T) bool {
	switch op {
	case "<":
		return func(v T) bool { return v < want }
	case "<=":
		return func(v T) bool { return v <= want }
	case ">":
		return func(v T) bool { return v > want }
	case ">=":
		return func(v T) bool { return v >= want }
	}
	return func(v T) bool { return v == want }
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
