package wire

import (
	"encoding/json"
	"math"
	"reflect"
	"strconv"
	"time"

	"anneal/domain"
)

// A Body is the JSON object of a request after Normalize for one wire type: names are in
// lowerCamelCase, and output-only fields are removed.
type Body map[string]any

// Normalize validates a JSON value against the wire type t and returns it with every name in
// lowerCamelCase. Violations name the path and the expected type; they never repeat the value.
func Normalize(v *domain.Violations, t reflect.Type, value any) Body {
	return normalizeWith(decoder{violations: v}, t, value)
}

// NormalizeStored is like Normalize, for stored values. It does not apply the rules for strings,
// because an older version may have stored strings that break these rules.
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

// Fill decodes the object into out, a pointer to the type for which it was normalized.
func (b Body) Fill(out any) error {
	data, err := json.Marshal(b)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return domain.Errorf(domain.InvalidArgument, "the body does not match its type: %v", err)
	}
	return nil
}

type decoder struct {
	violations *domain.Violations
	stored     bool // do not apply the rules for strings
}

// value returns the normalized form of a value of type t. path is the path of the value, and field
// is the name of the field whose rules apply. It returns nil when the value is null or invalid.
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

// text reports whether a string satisfies the rule of its field, and adds a violation if not.
func (d decoder) text(text, path, field string) bool {
	if d.stored {
		return true
	}
	before := len(*d.violations)
	form := TextForms[field]
	if form != rawText {
		d.violations.Require(len(text) <= MaxText, path, "must have at most %d bytes, not %d", MaxText,
			len(text))
		d.violations.RequireText(path, text, form == linesText)
	}
	return len(*d.violations) == before
}

// MaxText bounds a string in a request, in bytes, unless another rule applies to the field, because
// strings are stored in the log and in memory.
const MaxText = 4 << 10

// A textForm selects the rule for the characters and the length of a string field. See
// domain.ControlCharacter.
type textForm int

const (
	shortText textForm = iota // at most MaxText bytes on one line
	linesText                 // at most MaxText bytes, with tabs and newlines
	rawText                   // every character, at any length that the rules of the field allow
)

// TextForms lists the string fields that allow newlines, by JSON name. Other fields, and the keys
// of maps, are shortText.
var TextForms = map[string]textForm{
	"description":   linesText,
	"filter":        linesText, // filter of rows in the syntax of AIP-160
	"extraBody":     rawText,   // JSON
	"requirements":  rawText,   // pip's requirements.txt
	"fileContents":  rawText,   // source code
	"jinjaTemplate": rawText,   // template of a tokenizer
	"value":         rawText,   // value of a secret, sealed and never returned
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
		case !known && len(*d.violations) > domain.MaxViolations: // the list of violations is long enough
			continue
		case !known:
			d.violations.Add(Join(path, key), "is not a field of this object%s",
				domain.UnknownName(key, "valid fields: ", s.Names(false)))
			continue
		}
		if _, twice := normal[f.Name]; twice {
			d.violations.Add(Join(path, f.Name), "is given in camelCase and in snake_case: give it once")
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

// scalar returns the value in the form that encoding/json decodes into t, or a description of the
// expected type.
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

// integer returns a whole number that fits the type t, or a description of the expected type. A
// value of type int is limited to 32 bits.
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

// Whole returns the integer value of a number such as 3, 3.0 or 3e0. It returns false for 3.5, for
// numbers beyond 64 bits, and for numbers with a point or an exponent beyond 2^53.
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
			return "a fraction or a number out of range"
		}
		return "a number"
	case []any:
		return "a list"
	}
	return "an object"
}

// Join returns the path of the field called name below path. It truncates and escapes name, which a
// request may have chosen.
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
