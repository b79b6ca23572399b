package query

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"anneal/domain"
)

// MaxOrder is the maximum length of orderBy in bytes. MaxOrderFields is the maximum number of
// fields in orderBy.
const (
	MaxOrder       = 1024
	MaxOrderFields = 8
)

// An Order is a total order of the values of a wire type R: by the fields of orderBy, absent values
// first, and then by name.
type Order[R any] struct{ keys []orderKey }

type orderKey struct {
	path
	read       func(*candidate) keyValue
	descending bool
	index      rowIndex
}

// A rowIndex is the index of a table whose order is that of an order key. The values of a key with
// an index are always read from the row, without rendering it.
type rowIndex int

const (
	noIndex rowIndex = iota
	nameIndex
	createTimeIndex
)

// Order compiles orderBy, such as "createTime desc, displayName". When orderBy is empty, it
// compiles def, the default. A field can be any scalar; nested fields are written with dots. The
// error is a domain.Error with code InvalidArgument and a violation of the field "orderBy".
func (f *Fields[R]) Order(orderBy, def string) (*Order[R], error) {
	if strings.TrimSpace(orderBy) == "" {
		orderBy = def
	}
	keys, err := orderOf(&scope{root: f.root}, orderBy)
	return &Order[R]{keys}, err
}

func orderOf(c *scope, orderBy string) ([]orderKey, error) {
	keys, err := compileOrder(c, orderBy)
	if err != nil {
		var v domain.Violations
		v.Add("orderBy", "%v", err)
		return nil, v.Err()
	}
	return keys, nil
}

func compileOrder(c *scope, orderBy string) ([]orderKey, error) {
	if strings.TrimSpace(orderBy) == "" {
		return nil, nil
	}
	if len(orderBy) > MaxOrder {
		return nil, fmt.Errorf("has %d bytes: at most %d are allowed", len(orderBy), MaxOrder)
	}
	terms := strings.Split(orderBy, ",")
	if len(terms) > MaxOrderFields {
		return nil, fmt.Errorf("names %d fields: at most %d are allowed", len(terms), MaxOrderFields)
	}
	var keys []orderKey
	for _, term := range terms {
		key, err := compileTerm(c, strings.Fields(term))
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func compileTerm(c *scope, words []string) (orderKey, error) {
	var key orderKey
	switch {
	case len(words) == 0:
		return key, errors.New("has an empty entry, between two commas or at an end: write createTime desc, name")
	case len(words) > 2 || len(words) == 2 && words[1] != "desc" && words[1] != "asc":
		return key, fmt.Errorf("%q must be the name of a field, or the name followed by asc or desc",
			clip(strings.Join(words, " ")))
	}
	p, err := c.resolve(strings.Split(words[0], "."))
	switch {
	case err != nil:
		return key, err
	case p.lists() || !p.leaf.shape.scalar():
		return key, fmt.Errorf("%s is not a single value: order by text, a number, a time or a duration", p.name)
	}
	key = orderKey{path: p, read: p.reader(), descending: len(words) == 2 && words[1] == "desc"}
	switch {
	case p.name == "name" && p.leaf.shape == text:
		key.index = nameIndex
	case p.name == "createTime" && p.leaf.shape == timestamp:
		key.index = createTimeIndex
	}
	if inRow := key.read; p.column >= 0 {
		shown := p.shown()
		key.read = func(s *candidate) keyValue {
			switch c := s.column(p.column); {
			case c == nil:
				return inRow(s)
			case shown != nil:
				return keyValue{text: s.shownBy(p.column, c, shown)[c.code(s.index)]}
			default:
				return c.valueAt(p.leaf.shape, s.index)
			}
		}
	}
	return key, nil
}

// A keyValue is the value of an order key in a row. Only missing, or the field for the shape of the
// key, is set.
type keyValue struct {
	missing bool
	text    string
	integer int64 // value of an integer, a boolean (0 or 1) or a duration
	float   float64
	time    time.Time
}

// reader returns a function that reads the value of the path's field, which must be a scalar, in a
// candidate.
func (p *path) reader() func(*candidate) keyValue {
	at, ok := p.locate()
	read := scalarReader(p.leaf)
	if !ok || read == nil {
		return func(s *candidate) keyValue {
			v := p.at(s)
			if !v.IsValid() {
				return keyValue{missing: true}
			}
			return valueOf(p.leaf, v)
		}
	}
	return func(s *candidate) keyValue {
		value := at.find(s.at(p.renderer))
		if value == nil {
			return keyValue{missing: true}
		}
		return read(value)
	}
}

// scalarReader returns a function that reads a value of f at an address; nil for types that need
// reflection.
func scalarReader(f *field) func(unsafe.Pointer) keyValue {
	switch {
	case f.shape == text:
		return func(at unsafe.Pointer) keyValue { return keyValue{text: *(*string)(at)} }
	case f.shape == integer && isInt64(f.typ), f.shape == durationShape && !f.parsed:
		return func(at unsafe.Pointer) keyValue { return keyValue{integer: *(*int64)(at)} }
	case f.shape == number && f.typ.Kind() == reflect.Float64:
		return func(at unsafe.Pointer) keyValue { return keyValue{float: *(*float64)(at)} }
	case f.shape == timestamp:
		return func(at unsafe.Pointer) keyValue {
			t := *(*time.Time)(at)
			return keyValue{time: t, missing: t.IsZero()}
		}
	}
	return nil
}

func valueOf(f *field, v reflect.Value) (value keyValue) {
	switch f.shape {
	case text:
		value.text = v.String()
	case boolean:
		if v.Bool() {
			value.integer = 1
		}
	case integer:
		value.integer = integerOf(v)
	case number:
		value.float = v.Float()
	case timestamp:
		value.time = timestampOf(v)
		value.missing = value.time.IsZero()
	case durationShape:
		d, ok := durationOf(f, v)
		value.integer, value.missing = int64(d), !ok
	}
	return value
}

// compare returns -1 if the value a comes before b in the order of the key, 0 if they are equal,
// and 1 if a comes after b.
func (k *orderKey) compare(a, b keyValue) int {
	c := compareValues(k.leaf.shape, a, b)
	if k.descending {
		return -c
	}
	return c
}

// compareValues returns -1 if the value a of a field comes before b in ascending order, 0 if they are
// equal, and 1 if a comes after b.
func compareValues(s shape, a, b keyValue) int {
	switch {
	case a.missing || b.missing:
		return boolInt(b.missing) - boolInt(a.missing)
	case s == text:
		return strings.Compare(a.text, b.text)
	case s == number:
		return cmp.Compare(a.float, b.float)
	case s == timestamp:
		return a.time.Compare(b.time)
	}
	return cmp.Compare(a.integer, b.integer)
}

// bounds returns values that come first and last in the order of the key among the rows of the block;
// false if they are not known.
func (k *orderKey) bounds(s *candidate) (first, last keyValue, known bool) {
	if k.index == nameIndex || k.column < 0 || k.column >= len(s.columns) {
		return first, last, false
	}
	c := s.columns[k.column]
	if c == nil || c.dependent != nil {
		return first, last, false
	}
	if shown := k.shown(); shown == nil {
		first, last = c.valueAt(k.leaf.shape, int(c.lowest)), c.valueAt(k.leaf.shape, int(c.highest))
	} else if texts := s.shownBy(k.column, c, shown); c.absent == nil {
		first.text, last.text = slices.Min(texts), slices.Max(texts)
	} else {
		return first, last, false
	}
	if k.descending {
		first, last = last, first
	}
	return first, last, true
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// encode returns a value of the key as text for a page token; nil for a missing value.
func (k *orderKey) encode(v keyValue) *string {
	var s string
	switch {
	case v.missing:
		return nil
	case k.leaf.shape == text:
		s = v.text
	case k.leaf.shape == number:
		s = strconv.FormatFloat(v.float, 'g', -1, 64)
	case k.leaf.shape == timestamp:
		s = v.time.UTC().Format(time.RFC3339Nano)
	default:
		s = strconv.FormatInt(v.integer, 10)
	}
	return &s
}

// decode returns the value that encode has encoded.
func (k *orderKey) decode(s *string) (v keyValue, err error) {
	switch {
	case s == nil:
		v.missing = true
	case k.leaf.shape == text:
		v.text = *s
	case k.leaf.shape == number:
		v.float, err = strconv.ParseFloat(*s, 64)
	case k.leaf.shape == timestamp:
		v.time, err = time.Parse(time.RFC3339Nano, *s)
	default:
		v.integer, err = strconv.ParseInt(*s, 10, 64)
	}
	return v, err
}
