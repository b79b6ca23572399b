package wire

import (
	"encoding/json"
	"math"
	"reflect"
	"strconv"
	"time"

	"anneal/domain"
)

// A Body is a request's JSON object, read for one wire type: names in
// lowerCamelCase, without what only the server sets.
type Body map[string]any

// Normalize checks a JSON value against the wire type t and answers it with
// every name in lowerCamelCase. Violations name the path and what was
// expected; they never repeat the value.
func Normalize(v *domain.Violations, t reflect.Type, value any) Body {
	return normalizeWith(decoder{violations: v}, t, value)
}

// NormalizeStored is Normalize for what is stored already: an older version may
// have taken texts that are refused now.
func NormalizeStored(t reflect.Type, value any) Body {
	return normalizeWith(decoder{new(domain.Violations), true}, t, value)
}

func normalizeWith(d decoder, t reflect.Type, value any) Body {
	if value == nil {
		d.violations.Add("body", "must be an object, not null")
	}
	object, _ := d.value(Deref(t), value, "", "").(map[string]any)
	return object
}

// Fill writes the object into out, a pointer to the type that it was
// normalised for.
func (b Body) Fill(out any) error {
	data, err := json.Marshal(b)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return domain.Errorf(domain.InvalidArgument, "the body does not fit: %v", err)
	}
	return nil
}

type decoder struct {
	violations *domain.Violations
	stored     bool // the rules for texts do not hold
}

// value answers the normalised value at a path, which belongs to the named
// field; nil when it is null or wrong.
func (d decoder) value(t reflect.Type, value any, path, field string) any {
	if value == nil {
		return nil
	}
	switch KindOf(t) {
	case Object:
		return d.object(t, value, path)
	case Map:
		return d.mapping(t, value, path, field)
	case List:
		return d.list(t, value, path, field)
	case Any:
		return value
	}
	normal, expected := scalar(t, value)
	if expected != "" {
		d.violations.Add(path, "must be %s, not %s", expected, KindName(value))
		return nil
	}
	if text, isText := normal.(string); isText && !d.text(text, path, field) {
		return nil
	}
	return normal
}

// text tells whether a text keeps the rules for its field's.
func (d decoder) text(text, path, field string) bool {
	if d.stored {
		return true
	}
	before := len(*d.violations)
	form := TextForms[field]
	if form != rawText {
		d.violations.Require(len(text) <= MaxText, path, "must have at most %d bytes", MaxText)
		d.violations.RequireText(path, text, form == linesText)
	}
	return len(*d.violations) == before
}

// MaxText bounds a text of a request, in bytes, that has no rule of its own:
// every one is kept in the log and in memory.
const MaxText = 4 << 10

// A textForm is what the texts of a field may hold. See domain.ControlCharacter.
type textForm int

const (
	shortText textForm = iota // a line of at most maxText bytes
	linesText                 // tabs and newlines as well
	rawText                   // every character, at any length that the field's own rules allow
)

// TextForms are the fields whose texts are more than a line. The keys of a map
// are always one.
var TextForms = map[string]textForm{
	"description":   linesText,
	"filter":        linesText, // AIP-160, over rows
	"extraBody":     rawText,   // JSON
	"requirements":  rawText,   // a file of pip's
	"fileContents":  rawText,   // code
	"jinjaTemplate": rawText,   // of a tokenizer
	"value":         rawText,   // of a secret, sealed and never shown
}

func (d decoder) object(t reflect.Type, value any, path string) any {
	given, ok := value.(map[string]any)
	if !ok {
		d.violations.Add(orBody(path), "must be an object, not %s", KindName(value))
		return nil
	}
	s, normal := StructOf(t), map[string]any{}
	for _, key := range SortedKeys(given) {
		f, known := s.Field(key)
		switch {
		case !known && len(*d.violations) > domain.MaxViolations: // nobody is told
			continue
		case !known:
			d.violations.Add(Join(path, key), "is not a field here; there are: %s", OrNone(s.Names(false)))
			continue
		}
		if _, twice := normal[f.Name]; twice {
			d.violations.Add(Join(path, f.Name), "is given in both spellings: give it once")
			continue
		}
		if f.Output {
			continue
		}
		normal[f.Name] = d.value(Deref(f.Type), given[key], Join(path, f.Name), f.Name)
	}
	return normal
}

func (d decoder) mapping(t reflect.Type, value any, path, field string) any {
	given, ok := value.(map[string]any)
	if !ok {
		d.violations.Add(path, "must be an object, not %s", KindName(value))
		return nil
	}
	normal := map[string]any{}
	for _, key := range SortedKeys(given) {
		if given[key] == nil {
			d.violations.Add(Join(path, key), "must not be null")
			continue
		}
		if d.text(key, Join(path, key), "") {
			normal[key] = d.value(Deref(t.Elem()), given[key], Join(path, key), field)
		}
	}
	return normal
}

func (d decoder) list(t reflect.Type, value any, path, field string) any {
	given, ok := value.([]any)
	if !ok {
		d.violations.Add(path, "must be a list, not %s", KindName(value))
		return nil
	}
	normal := make([]any, len(given))
	for i, element := range given {
		at := path + "[" + strconv.Itoa(i) + "]"
		if element == nil {
			d.violations.Add(at, "must not be null")
			continue
		}
		normal[i] = d.value(Deref(t.Elem()), element, at, field)
	}
	return normal
}

// scalar answers the value in the form that encoding/json reads into t, or
// what was expected instead.
func scalar(t reflect.Type, value any) (normal any, expected string) {
	text, isText := value.(string)
	number, isNumber := value.(json.Number)
	switch KindOf(t) {
	case Text:
		if isText {
			return text, ""
		}
		return nil, "text"
	case Bool:
		if b, ok := value.(bool); ok {
			return b, ""
		}
		return nil, "true or false"
	case Time:
		at, err := time.Parse(time.RFC3339, text)
		if isText && err == nil && at.Year() >= 1 && at.Year() <= 9999 {
			return at.UTC().Format(time.RFC3339Nano), ""
		}
		return nil, `a time such as "2030-01-31T12:00:00Z"`
	case Count:
		if isText {
			number, isNumber = json.Number(text), true
		}
		if n, ok := Whole(number); isNumber && ok {
			return n, ""
		}
		return nil, `a whole number or its digits in quotes, such as "42"`
	case Int:
		return integer(t, number, isNumber)
	default:
		f, err := number.Float64()
		if isNumber && err == nil && !math.IsInf(f, 0) {
			return f, ""
		}
		return nil, "a number"
	}
}

// integer reads a whole number that fits; a plain int is the wire's int32.
func integer(t reflect.Type, number json.Number, isNumber bool) (any, string) {
	n, ok := Whole(number)
	switch {
	case isNumber && t.Kind() == reflect.Int && (!ok || n < math.MinInt32 || n > math.MaxInt32):
		return nil, "a whole number of at most 32 bits"
	case isNumber && t.Kind() == reflect.Uint64 && (!ok || n < 0):
		return nil, "a whole number that is not negative"
	case isNumber && ok:
		return n, ""
	}
	return nil, "a whole number"
}

// Whole reads 3, 3.0 and 3e0, but not 3.5.
func Whole(number json.Number) (int64, bool) {
	if n, err := number.Int64(); err == nil {
		return n, true
	}
	f, err := number.Float64()
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}

func KindName(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case bool:
		return "true or false"
	case string:
		return "text"
	case json.Number:
		if _, ok := Whole(v); !ok {
			return "a number that does not fit"
		}
		return "a number"
	case []any:
		return "a list"
	}
	return "an object"
}

// Join is the path of a name below another; what a request calls a field is
// shown cut and escaped.
func Join(path, name string) string {
	if runes := []rune(name); len(runes) > 64 {
		name = string(runes[:64]) + "…"
	}
	name = domain.Printable(name)
	if path == "" {
		return name
	}
	return path + "." + name
}

func orBody(path string) string {
	if path == "" {
		return "body"
	}
	return path
}

func OrNone(names string) string {
	if names == "" {
		return "none"
	}
	return names
}
