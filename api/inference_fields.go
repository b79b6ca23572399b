package api

import (
	"encoding/json"
	"strconv"
	"strings"

	"anneal/api/wire"
	"anneal/domain"
)

// inferenceFields reads fields of an inference request, each under its
// snake_case name; null is as good as absent.
type inferenceFields struct {
	at         string // the path of the object whose fields these are, with a dot at its end
	values     map[string]any
	violations *domain.Violations
	unknown    *[]string // paths of fields that nobody knows
}

// within reads the fields of an object inside the request.
func (f *inferenceFields) within(at string, object map[string]any, known map[string]bool) *inferenceFields {
	inside := &inferenceFields{at: f.at + at + ".", values: map[string]any{}, violations: f.violations, unknown: f.unknown}
	inside.take(object, known)
	return inside
}

// add and require record violations by the fields of this object.
func (f *inferenceFields) add(name, format string, args ...any) {
	f.violations.Add(f.at+name, format, args...)
}

func (f *inferenceFields) require(ok bool, name, format string, args ...any) {
	f.violations.Require(ok, f.at+name, format, args...)
}

// take keeps the known fields, and notes the others.
func (f *inferenceFields) take(object map[string]any, known map[string]bool) {
	for _, key := range wire.SortedKeys(object) {
		name := key
		if !known[name] {
			name = wire.Snake(key)
		}
		switch _, twice := f.values[name]; {
		case !known[name]:
			*f.unknown = append(*f.unknown, wire.Join(strings.TrimSuffix(f.at, "."), key))
		case twice:
			f.add(name, "is given in both spellings: give it once")
		case object[key] != nil:
			f.values[name] = object[key]
		}
	}
}

func (f *inferenceFields) text(name string, most int) string {
	value, given := f.values[name]
	text, ok := value.(string)
	f.require(!given || ok, name, "must be text, not %s", wire.KindName(value))
	f.require(len(text) <= most, name, "must have at most %d bytes", most)
	return text
}

func (f *inferenceFields) flag(name string) bool {
	value, given := f.values[name]
	on, ok := value.(bool)
	f.require(!given || ok, name, "must be true or false, not %s", wire.KindName(value))
	return on
}

func (f *inferenceFields) object(name string) map[string]any {
	value, given := f.values[name]
	object, ok := value.(map[string]any)
	f.require(!given || ok, name, "must be an object, not %s", wire.KindName(value))
	return object
}

func (f *inferenceFields) choice(name string, allowed ...string) string {
	text := f.text(name, 64)
	if _, given := f.values[name]; !given {
		return ""
	}
	for _, a := range allowed {
		if a == text {
			return text
		}
	}
	f.add(name, "must be one of %s", strings.Join(allowed, ", "))
	return ""
}

func (f *inferenceFields) whole(name string, low, high, def int64) int64 {
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

func (f *inferenceFields) number(name string, low, high, def float64) float64 {
	value, given := f.values[name]
	if !given {
		return def
	}
	number, ok := value.(json.Number)
	n, err := number.Float64()
	if !ok || err != nil || n < low || n > high {
		f.add(name, "must be a number from %s to %s", strconv.FormatFloat(low, 'f', -1, 64), strconv.FormatFloat(high, 'f', -1, 64))
		return def
	}
	return n
}

// list is a field that holds several; one that is none of them is a violation.
func (f *inferenceFields) list(name string, most int) []any {
	value, given := f.values[name]
	list, ok := value.([]any)
	f.require(!given || ok, name, "must be a list, not %s", wire.KindName(value))
	f.require(len(list) <= most, name, "must hold at most %d", most)
	return list[:min(len(list), most)]
}

func (f *inferenceFields) given(name string) bool {
	_, given := f.values[name]
	return given
}
