package wire

import (
	"encoding/json"
	"math"
	"reflect"
	"strconv"
	"time"

	"anneal/domain"
)

// A Body is the JSON object of a request in the normal form of a wire type: all names are in
// lowerCamelCase, and output-only fields are left out. Normalize returns it.
type Body map[string]any

// Normalize checks a JSON value against the wire type t and returns its normal form. It adds a
// violation with the path and the expected type for each field that does not match; violations
// never contain a text from the request.
func Normalize(v *domain.Violations, t reflect.Type, value any) Body {
	return normalizeWith(decoder{violations: v}, t, value)
}

// NormalizeStored is like Normalize for values that the server stored. It does not check strings,
// because an older version may have stored strings that break today's rules.
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

// Fill decodes the body into out, a pointer to the type for which the body was normalized.
func (b Body) Fill(out any) error {
	data, err := json.Marshal(b)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return domain.Errorf(domain.InvalidArgument, "the body does not match the type of the operation: %v", err)
	}
	return nil
}

type decoder struct {
	violations *domain.Violations
	stored     bool // the value was stored by the server, so strings are not checked
}

// value returns the normal form of a value of type t. path is the path of the value, and field is
// the name of the field whose rules apply to it. It returns nil if the value is null or, after
// adding a violation, if it is invalid.
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

// text reports whether a string satisfies the rule of its field. If not, it adds a violation.
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

// MaxText is the maximum length of a string in a request, in bytes, unless the field has another
// rule. Strings are stored in the log and in memory.
const MaxText = 4 << 10

// A textForm states which characters a string field may contain, and how long it may be. See
// domain.ControlCharacter.
type textForm int

const (
	shortText textForm = iota // one line of at most MaxText bytes
	linesText                 // at most MaxText bytes, which may include tabs and newlines
	rawText                   // all characters, and any length that the rules of the field allow
)

// TextForms lists the string fields with another form than shortText, by JSON name. Keys of maps
// are shortText too.
var TextForms = map[string]textForm{
	"description":   linesText,
	"filter":        linesText, // AIP-160 filter of rows
	"extraBody":     rawText,   // JSON text
	"requirements":  rawText,   // pip's requirements.txt
	"fileContents":  rawText,   // source code
	"jinjaTemplate": rawText,   // chat template of a tokenizer
	"value":         rawText,   // value of a secret, which is sealed and never returned
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
		case !known && len(*d.violations) > domain.MaxViolations: // responses show at most MaxViolations violations
			continue
		case !known:
			d.violations.Add(Join(path, key), "is not a field of this object%s",
				domain.UnknownName(key, "valid fields: ", s.Names(false)))
			continue
		}
		if _, twice := normal[f.Name]; twice {
			d.violations.Add(Join(path, f.Name), "is given in lowerCamelCase and in snake_case: give it once")
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

// scalar returns a value in the form that encoding/json decodes into t. If the value does not match
// t, it returns a description of what t expects.
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

// integer returns the digits of a whole number that fits the type t, or a description of what t
// expects. An int may have at most 32 bits.
func integer(t reflect.Type, number json.Number, isNumber bool) (any, string) {
	n, ok := Whole(number)
	switch {
	case isNumber && t.Kind() == reflect.Int && (!ok || n < math.MinInt32 || n > math.MaxInt32):
		return nil, "a whole number between -2147483648 and 2147483647"
	case isNumber && t.Kind() == reflect.Uint64 && (!ok || n < 0):
		return nil, "a whole number of at least 0"
	case isNumber && ok:
		return n, ""
	}
	return nil, "a whole number"
}

// Whole returns the integer value of a number such as 3, 3.0 or 3e0. It returns false for numbers
// that are not whole or have more than 64 bits, and for numbers with a point or an exponent above
// 2^53.
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

// Join returns the path of the field name of the object at path. It truncates and escapes name,
// because a request may have chosen it.
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
