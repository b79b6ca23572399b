package query

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
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

// An Order is a total order of values of a wire type: by the fields of orderBy, absent values
// first. Ties are broken by name.
type Order[R any] struct{ keys []orderKey }

type orderKey struct {
	path
	read       func(*subject) keyValue
	descending bool
	index      rowIndex
}

// A rowIndex is the index of a table that is ordered by an order key. For these keys, the value is
// always that of the row.
type rowIndex int

const (
	noIndex rowIndex = iota
	nameIndex
	createTimeIndex
)

// Order compiles orderBy, such as "createTime desc, displayName". When orderBy is empty, it
// compiles def. A field can be any scalar; nested fields are written with dots. The error is a
// domain.Error with code InvalidArgument and a violation of the field "orderBy".
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
		return key, errors.New("has an empty part: write fields with commas between them, as in createTime desc, name")
	case len(words) > 2 || len(words) == 2 && words[1] != "desc" && words[1] != "asc":
		return key, fmt.Errorf("%q is not a term: write a field, or a field and desc", clip(strings.Join(words, " ")))
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
	case p.name == "createTime" && p.leaf.shape == instant:
		key.index = createTimeIndex
	}
	if inRow := key.read; p.column >= 0 {
		key.read = func(s *subject) keyValue {
			if c := s.column(p.column); c != nil {
				return c.valueAt(p.leaf.shape, s.index)
			}
			return inRow(s)
		}
	}
	return key, nil
}

// A keyValue is the value of an order key in a row. Only missing, or the field for the key's shape,
// is set.
type keyValue struct {
	missing bool
	text    string
	whole   int64 // integers, booleans and durations
	real    float64
	at      time.Time
}

// reader returns a function that reads the value of the path's field in a subject, which must be a
// scalar.
func (p *path) reader() func(*subject) keyValue {
	at, ok := p.locate()
	read := scalarReader(p.leaf)
	if !ok || read == nil {
		return func(s *subject) keyValue {
			v := p.at(s)
			if !v.IsValid() {
				return keyValue{missing: true}
			}
			return valueOf(p.leaf, v)
		}
	}
	return func(s *subject) keyValue {
		value := at.find(s.at(p.part))
		if value == nil {
			return keyValue{missing: true}
		}
		return read(value)
	}
}

// scalarReader returns a function that reads the value of a field at an address; nil for types that
// need reflection.
func scalarReader(f *field) func(unsafe.Pointer) keyValue {
	switch {
	case f.shape == text:
		return func(at unsafe.Pointer) keyValue { return keyValue{text: *(*string)(at)} }
	case f.shape == integer && isInt64(f.typ), f.shape == span && !f.parsed:
		return func(at unsafe.Pointer) keyValue { return keyValue{whole: *(*int64)(at)} }
	case f.shape == number && f.typ.Kind() == reflect.Float64:
		return func(at unsafe.Pointer) keyValue { return keyValue{real: *(*float64)(at)} }
	case f.shape == instant:
		return func(at unsafe.Pointer) keyValue {
			t := *(*time.Time)(at)
			return keyValue{at: t, missing: t.IsZero()}
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
			value.whole = 1
		}
	case integer:
		value.whole = integerOf(v)
	case number:
		value.real = v.Float()
	case instant:
		value.at = instantOf(v)
		value.missing = value.at.IsZero()
	case span:
		d, ok := spanOf(f, v)
		value.whole, value.missing = int64(d), !ok
	}
	return value
}

// compare returns -1 if the value a comes before b in the order of the key, 0 if they are equal,
// and 1 if a comes after b.
func (k *orderKey) compare(a, b keyValue) int {
	c := 0
	switch {
	case a.missing || b.missing:
		c = boolInt(b.missing) - boolInt(a.missing)
	case k.leaf.shape == text:
		c = strings.Compare(a.text, b.text)
	case k.leaf.shape == number:
		c = cmp.Compare(a.real, b.real)
	case k.leaf.shape == instant:
		c = a.at.Compare(b.at)
	default:
		c = cmp.Compare(a.whole, b.whole)
	}
	if k.descending {
		return -c
	}
	return c
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// spell returns a value of the key as text for a page token; nil for an absent value.
func (k *orderKey) spell(v keyValue) *string {
	var s string
	switch {
	case v.missing:
		return nil
	case k.leaf.shape == text:
		s = v.text
	case k.leaf.shape == number:
		s = strconv.FormatFloat(v.real, 'g', -1, 64)
	case k.leaf.shape == instant:
		s = v.at.UTC().Format(time.RFC3339Nano)
	default:
		s = strconv.FormatInt(v.whole, 10)
	}
	return &s
}

// parse returns the value that spell encoded.
func (k *orderKey) parse(s *string) (v keyValue, err error) {
	switch {
	case s == nil:
		v.missing = true
	case k.leaf.shape == text:
		v.text = *s
	case k.leaf.shape == number:
		v.real, err = strconv.ParseFloat(*s, 64)
	case k.leaf.shape == instant:
		v.at, err = time.Parse(time.RFC3339Nano, *s)
	default:
		v.whole, err = strconv.ParseInt(*s, 10, 64)
	}
	return v, err
}
