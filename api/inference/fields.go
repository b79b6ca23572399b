package inference

import (
	"encoding/json"
	"strconv"
	"strings"

	"anneal/api/wire"
	"anneal/domain"
)

// A fieldReader reads and validates the fields of a JSON object in a request. The keys of values
// are in snake_case. A field with the value null counts as absent.
type fieldReader struct {
	at         string // path of the object followed by a dot, such as "thinking."; "" for the body
	values     map[string]any
	violations *domain.Violations
	unknown    *[]string // paths of the unknown fields of the request
	images     *[]*requestImage
}

// nested returns a reader of an object, which is the value of the field name. known has the names
// of the object's fields.
func (f *fieldReader) nested(name string, object map[string]any, known map[string]bool) *fieldReader {
	r := &fieldReader{at: f.at + name + ".", values: map[string]any{}, violations: f.violations, unknown: f.unknown,
		images: f.images}
	r.collect(object, known)
	return r
}

// add adds a violation of the object's field name.
func (f *fieldReader) add(name, format string, args ...any) {
	f.violations.Add(f.at+name, format, args...)
}

func (f *fieldReader) require(ok bool, name, format string, args ...any) {
	f.violations.Require(ok, f.at+name, format, args...)
}

// collect stores the known fields of an object in f.values, and the paths of its other fields in
// f.unknown.
func (f *fieldReader) collect(object map[string]any, known map[string]bool) {
	for _, key := range wire.SortedKeys(object) {
		name := key
		if !known[name] {
			name = wire.Snake(key)
		}
		switch _, twice := f.values[name]; {
		case !known[name]:
			*f.unknown = append(*f.unknown, wire.Join(strings.TrimSuffix(f.at, "."), key))
		case twice:
			f.add(name, "is given in lowerCamelCase and in snake_case: give it once")
		case object[key] != nil:
			f.values[name] = object[key]
		}
	}
}

func (f *fieldReader) text(name string, maxBytes int) string {
	value, given := f.values[name]
	text, ok := value.(string)
	f.require(!given || ok, name, "must be text, not %s", wire.KindName(value))
	f.require(len(text) <= maxBytes, name, "must have at most %d bytes, not %d: shorten it", maxBytes, len(text))
	return text
}

func (f *fieldReader) boolean(name string) bool {
	value, given := f.values[name]
	on, ok := value.(bool)
	f.require(!given || ok, name, "must be true or false, not %s", wire.KindName(value))
	return on
}

func (f *fieldReader) object(name string) map[string]any {
	value, given := f.values[name]
	object, ok := value.(map[string]any)
	f.require(!given || ok, name, "must be an object, not %s", wire.KindName(value))
	return object
}

func (f *fieldReader) enum(name string, allowed ...string) string {
	text := f.text(name, 64)
	if _, given := f.values[name]; !given {
		return ""
	}
	for _, a := range allowed {
		if a == text {
			return text
		}
	}
	f.add(name, "must be one of %s, not %s%s", strings.Join(allowed, ", "), wire.Quote(text),
		domain.DidYouMean(text, allowed))
	return ""
}

func (f *fieldReader) integer(name string, low, high, def int64) int64 {
	value, given := f.values[name]
	if !given {
		return def
	}
	number, ok := value.(json.Number)
	n, isWhole := wire.Whole(number)
	if !ok || !isWhole || n < low || n > high {
		f.add(name, "must be a whole number from %d to %d", low, high)
		return def
	}
	return n
}

func (f *fieldReader) number(name string, low, high, def float64) float64 {
	value, given := f.values[name]
	if !given {
		return def
	}
	number, ok := value.(json.Number)
	n, err := number.Float64()
	if !ok || err != nil || n < low || n > high {
		f.add(name, "must be a number from %s to %s", strconv.FormatFloat(low, 'f', -1, 64),
			strconv.FormatFloat(high, 'f', -1, 64))
		return def
	}
	return n
}

// list returns the first maxItems elements of the field name. It adds a violation if the value is
// not a list, or is longer.
func (f *fieldReader) list(name string, maxItems int) []any {
	value, given := f.values[name]
	list, ok := value.([]any)
	f.require(!given || ok, name, "must be a list, not %s", wire.KindName(value))
	f.require(len(list) <= maxItems, name, "must have at most %d elements, not %d: send fewer", maxItems, len(list))
	return list[:min(len(list), maxItems)]
}

func (f *fieldReader) given(name string) bool {
	_, given := f.values[name]
	return given
}
