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

const anyValue = "*" // value in the filter term field:*, which matches if the field is set

// comparison compiles the term of a filter that compares the field at p with value, as it is
// written in the filter.
func comparison(p path, op, value string) (predicate, error) {
	if op == "!=" {
		equal, err := comparison(p, "=", value)
		return equal.not(), err
	}
	if p.leaf.shape == anyJSON {
		return p.matches(freeTest(p.below, op, value)), nil
	}
	t, err := testOf(p.leaf, p.name, op, value)
	if err != nil {
		return predicate{}, err
	}
	if t.of == noValues && p.leaf.shape.scalar() {
		t.each, t.of = t.value, leafValues
	}
	return p.matches(t), nil
}

// A test reports whether a value of a field matches.
type test struct {
	value   func(reflect.Value) bool  // tests a value that is not a pointer
	address func(unsafe.Pointer) bool // the same for a value at an address; nil if values must be read with reflection
	text    func(string) bool         // the same for a text; nil if the field is no text
	// column is the same for a value in a column: that of row i or, in a column of texts, text number
	// i. It is nil if the field has no columns.
	column func(c *column, i int) bool
	// each tests one of the values in valueRows, for fields without a column.
	each func(reflect.Value) bool
	of   valuesOf
}

// textTestOf returns a test of a text.
func textTestOf(match func(string) bool) test {
	t := scalarTest(reflect.Value.String, (*column).textAt, match)
	t.text = match
	return t
}

// scalarTest returns a test that reports whether match returns true for the value of a scalar
// field. read returns the value in a reflect.Value, and column the value of a row in a column. T
// must have the memory layout of the field.
func scalarTest[T any](read func(reflect.Value) T, column func(*column, int) T, match func(T) bool) test {
	return test{value: func(v reflect.Value) bool { return match(read(v)) },
		address: func(at unsafe.Pointer) bool { return match(*(*T)(at)) },
		column:  columnTest(column, match)}
}

func columnTest[T any](read func(*column, int) T, match func(T) bool) func(*column, int) bool {
	return func(c *column, i int) bool { return match(read(c, i)) }
}

func testOf(f *field, name, op, value string) (test, error) {
	if op == ":" && value == anyValue {
		return presence(f), nil
	}
	switch f.shape {
	case list:
		if op != ":" {
			return test{}, fmt.Errorf("%s is a list: use %s:VALUE, which tests whether any element is VALUE", name, name)
		}
		return elementTest(f, name, value)
	case mapShape:
		if op != ":" {
			return test{}, fmt.Errorf("%s is a map: use %s:KEY, which tests whether it has KEY, or compare %s.KEY", name, name,
				name)
		}
		key := reflect.ValueOf(value).Convert(f.typ.Key())
		return test{value: func(v reflect.Value) bool { return v.MapIndex(key).IsValid() },
			each: func(v reflect.Value) bool { return v.String() == value }, of: mapKeys}, nil
	case objectShape:
		return test{}, fmt.Errorf("%s is an object: compare one of its fields, %s, or use %s:*", name,
			strings.Join(f.names(), ", "), name)
	case presenceOnly:
		return test{}, fmt.Errorf("%s cannot be compared: use %s:*, which tests whether it is set", name, name)
	case text:
		return textTest(f, name, op, value)
	case boolean:
		return booleanTest(name, op, value)
	case timestamp:
		return timestampTest(name, op, value)
	case durationShape:
		return durationTest(f, name, op, value)
	}
	return numberTest(f, name, op, value)
}

// elementTest returns a test that reports whether any element of a list equals value or, when the
// elements are lists or maps, contains value. name is the name of the list field, for errors.
func elementTest(f *field, name, value string) (test, error) {
	switch {
	case f.elem.shape == objectShape:
		return test{}, fmt.Errorf("%s is a list of objects: compare one of their fields, %s, as in %s.%s:VALUE",
			name, strings.Join(f.elem.names(), ", "), name, f.elem.ordered[0].name)
	case f.elem.shape == presenceOnly:
		return test{}, fmt.Errorf("%s cannot be compared: use %s:*, which tests whether it is set", name, name)
	}
	op := "="
	if !f.elem.shape.scalar() {
		op = ":"
	}
	t, err := testOf(f.elem, name, op, value)
	if err != nil {
		return test{}, err
	}
	all := test{value: func(v reflect.Value) bool {
		for i := range v.Len() {
			if e := pointee(v.Index(i)); e.IsValid() && t.value(e) {
				return true
			}
		}
		return false
	}}
	if f.elem.shape.scalar() {
		all.each, all.of = t.value, elements
	}
	return all, nil
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

// presence returns the test of the term field:* (see present).
func presence(f *field) test {
	t := test{value: present}
	if !f.shape.scalar() && f.shape != anyJSON {
		t.each, t.of = reflect.Value.Bool, presences
	}
	switch f.shape {
	case text:
		t.address = func(at unsafe.Pointer) bool { return *(*string)(at) != "" }
		t.text = func(s string) bool { return s != "" }
		t.column = func(c *column, i int) bool { return c.textAt(i) != "" }
	case boolean, integer, durationShape:
		t.column = func(c *column, i int) bool { return c.integerAt(i) != 0 }
	case number:
		t.column = func(c *column, i int) bool { return c.floatAt(i) != 0 }
	case timestamp:
		t.address = func(at unsafe.Pointer) bool { return !(*time.Time)(at).IsZero() }
		t.column = func(*column, int) bool { return true } // zero times are absent in a column
	}
	return t
}

func textTest(f *field, name, op, value string) (test, error) {
	match := textMatch(op, value)
	if (op == "=" || op == ":") && value != "" && len(f.values) > 0 && !slices.ContainsFunc(f.values, match) {
		return test{}, fmt.Errorf("%s has no value %q%s", name, clip(value),
			domain.UnknownName(value, "it is one of ", f.values))
	}
	return textTestOf(match), nil
}

func textMatch(op, value string) func(string) bool {
	switch op {
	case "=":
		if !strings.Contains(value, anyValue) {
			return func(s string) bool { return s == value }
		}
		pieces := strings.Split(value, anyValue)
		return func(s string) bool { return matchesPattern(s, pieces) }
	case ":":
		return newWord(value).isIn
	}
	return comparing(op, value)
}

// matchesPattern reports whether a text matches a pattern in which * stands for any characters.
// pieces are the texts of the pattern between the stars.
func matchesPattern(s string, pieces []string) bool {
	first, last := pieces[0], pieces[len(pieces)-1]
	if len(s) < len(first)+len(last) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, last) {
		return false
	}
	return containsInOrder(s[len(first):len(s)-len(last)], pieces[1:len(pieces)-1])
}

// containsInOrder reports whether a text contains the pieces, one after another.
func containsInOrder(s string, pieces []string) bool {
	for _, piece := range pieces {
		at := strings.Index(s, piece)
		if at < 0 {
			return false
		}
		s = s[at+len(piece):]
	}
	return true
}

// A word is a text that is searched in other texts, ignoring case. A * in it stands for any
// characters.
type word struct {
	pieces []string // the texts between the stars, in lower case; the first and the last are empty
	simple bool     // there is only one piece, which is ASCII
}

func newWord(value string) *word {
	pieces := strings.Split(strings.ToLower(anyValue+value+anyValue), anyValue)
	return &word{pieces, len(pieces) == 3 && isASCII(value)}
}

// isIn reports whether a text contains the word.
func (w *word) isIn(s string) bool {
	if w.simple {
		return containsFold(s, w.pieces[1])
	}
	return matchesPattern(strings.ToLower(s), w.pieces)
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// containsFold reports whether s contains lower, ignoring case, without allocating memory. lower
// must be lower-case ASCII.
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
		return test{}, fmt.Errorf("%s is true or false: compare it with one of these, not with %q", name, clip(value))
	}
	want := value == "true"
	return scalarTest(reflect.Value.Bool, (*column).boolAt, func(b bool) bool { return b == want }), nil
}

func timestampTest(name, op, value string) (test, error) {
	at, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		if at, err = time.Parse(time.DateOnly, value); err != nil {
			return test{}, fmt.Errorf("%s is a time: compare it with one like \"2026-03-01T00:00:00Z\", not with %q", name,
				clip(value))
		}
	}
	match := ordering(op)
	return scalarTest(timestampOf, (*column).timeAt, func(t time.Time) bool {
		return !t.IsZero() && match(t.Compare(at))
	}), nil
}

func durationTest(f *field, name, op, value string) (test, error) {
	want, err := time.ParseDuration(value)
	if err != nil {
		return test{}, fmt.Errorf("%s is a duration: compare it with one like 30s, not with %q", name, clip(value))
	}
	match := ordering(op)
	if f.parsed {
		return scalarTest(reflect.Value.String, (*column).textAt, func(s string) bool {
			d, err := time.ParseDuration(s)
			return err == nil && match(cmp.Compare(d, want))
		}), nil
	}
	return scalarTest(reflect.Value.Int, (*column).integerAt, comparing(op, int64(want))), nil
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
	match := ordering(op)
	if f.shape == integer {
		return integerTest(f, func(n int64) bool { return match(cmp.Compare(float64(n), want)) }), nil
	}
	t := scalarTest(reflect.Value.Float, (*column).floatAt, func(x float64) bool { return match(cmp.Compare(x, want)) })
	if f.typ.Kind() != reflect.Float64 {
		t.address = nil
	}
	return t, nil
}

func integerTest(f *field, match func(int64) bool) test {
	t := scalarTest(integerOf, (*column).integerAt, match)
	if !isInt64(f.typ) {
		t.address = nil
	}
	return t
}

// isInt64 reports whether values of type t have the memory layout of an int64.
func isInt64(t reflect.Type) bool {
	return t.Kind() == reflect.Int64 || t.Kind() == reflect.Int && t.Size() == reflect.TypeFor[int64]().Size()
}

// comparing returns a function that reports whether v op want is true for its argument v.
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

// ordering returns a function that reports whether the operator is true for two values, given the
// result of cmp.Compare for them: -1, 0 or 1.
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
