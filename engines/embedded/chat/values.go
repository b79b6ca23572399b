package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// A keyOrder records the order of the keys of JSON objects, by address of the object. Templates
// render keys in that order, which Go maps do not have.
type keyOrder map[uintptr][]string

// keys returns the keys of an object: first those with a recorded order, in that order, and then
// all others, sorted.
func (o keyOrder) keys(object map[string]any) []string {
	var keys, rest []string
	for _, key := range o[identity(object)] {
		if _, ok := object[key]; ok {
			keys = append(keys, key)
		}
	}
	for key := range object {
		if !slices.Contains(keys, key) {
			rest = append(rest, key)
		}
	}
	slices.Sort(rest)
	return append(keys, rest...)
}

func (o keyOrder) sort(object map[string]any, keys ...string) { o[identity(object)] = keys }

func identity(object map[string]any) uintptr { return reflect.ValueOf(object).Pointer() }

// object returns an object with the given keys and values, and records the order of the keys.
func (o keyOrder) object(keys []string, values ...any) map[string]any {
	object := map[string]any{}
	for i, key := range keys {
		object[key] = values[i]
	}
	o.sort(object, keys...)
	return object
}

// parse decodes JSON, records the order of the keys of its objects, and separates special tokens in
// its strings with sep.
func (o keyOrder) parse(raw json.RawMessage, sep separator) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	value, err := o.value(dec, sep, 0)
	if err == nil && dec.More() {
		err = errors.New("trailing data after the JSON value")
	}
	return value, err
}

const maxDepth = 64

func (o keyOrder) value(dec *json.Decoder, sep separator, depth int) (any, error) {
	token, err := dec.Token()
	if err != nil || depth > maxDepth {
		return nil, errors.Join(err, tooDeep(depth))
	}
	switch token := token.(type) {
	case string:
		return sep.insert(token), nil
	case json.Number:
		return number(token), nil
	case json.Delim:
		if token == '[' {
			return o.list(dec, sep, depth)
		}
		return o.members(dec, sep, depth)
	}
	return token, nil
}

func tooDeep(depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("the value is nested more than %d levels deep", maxDepth)
	}
	return nil
}

func (o keyOrder) list(dec *json.Decoder, sep separator, depth int) (any, error) {
	list := []any{}
	for dec.More() {
		one, err := o.value(dec, sep, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	_, err := dec.Token()
	return list, err
}

func (o keyOrder) members(dec *json.Decoder, sep separator, depth int) (any, error) {
	object, keys := map[string]any{}, []string{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, err
		}
		key := sep.insert(fmt.Sprint(token))
		if _, twice := object[key]; !twice {
			keys = append(keys, key)
		}
		if object[key], err = o.value(dec, sep, depth+1); err != nil {
			return nil, err
		}
	}
	o.sort(object, keys...)
	_, err := dec.Token()
	return object, err
}

func number(n json.Number) any {
	if whole, err := strconv.Atoi(n.String()); err == nil {
		return whole
	}
	f, err := n.Float64()
	if err != nil {
		return n.String()
	}
	return f
}

// unescaped returns a JSON text and, if the text has \u escapes, its decoded value after it. So the
// result contains every character of the value without an escape.
func unescaped(text string) string {
	if !strings.Contains(text, `\u`) {
		return text
	}
	var value any
	if json.Unmarshal([]byte(text), &value) != nil {
		return text
	}
	return text + fmt.Sprint(value)
}

// A jsonWriter writes values as json.dumps of Python does.
type jsonWriter struct {
	strings.Builder
	order  keyOrder
	indent int // number of spaces for each level; -1 writes one line
}

func (w *jsonWriter) write(value any, depth int) error {
	if err := tooDeep(depth); err != nil {
		return err
	}
	if w.Len() > maxRendered {
		return errTooLarge
	}
	switch value := value.(type) {
	case *exec.Value:
		return w.write(goValue(value), depth)
	case exec.Dict:
		return w.literal(value, depth)
	case map[string]any:
		return w.object(value, depth)
	case []any:
		return w.list(value, depth)
	case string:
		w.text(value)
	case float64:
		w.number(value)
	default:
		data, err := json.Marshal(value)
		w.Write(data)
		return err
	}
	return nil
}

func (w *jsonWriter) object(object map[string]any, depth int) error {
	for i, key := range w.order.keys(object) {
		w.next("{", i, depth)
		w.text(key)
		w.WriteString(": ")
		if err := w.write(object[key], depth+1); err != nil {
			return err
		}
	}
	w.close("{}", len(object), depth)
	return nil
}

// literal writes a dict that the template itself defines.
func (w *jsonWriter) literal(object exec.Dict, depth int) error {
	keys, values := []string{}, []any{}
	for _, pair := range object.Pairs {
		keys, values = append(keys, pair.Key.String()), append(values, pair.Value)
	}
	return w.object(w.order.object(keys, values...), depth)
}

// goValue converts a value of a template to the value of Go that jsonWriter writes.
func goValue(v *exec.Value) any {
	switch value := v.Interface().(type) {
	case *exec.Dict:
		return *value
	case exec.ValuesList:
		list := make([]any, len(value))
		for i, one := range value {
			list[i] = one
		}
		return list
	default:
		return value
	}
}

func (w *jsonWriter) list(list []any, depth int) error {
	for i, one := range list {
		w.next("[", i, depth)
		if err := w.write(one, depth+1); err != nil {
			return err
		}
	}
	w.close("[]", len(list), depth)
	return nil
}

// next writes what precedes element i of an object or list: open before the first element, a comma
// before the others, and the indentation.
func (w *jsonWriter) next(open string, i, depth int) {
	switch {
	case i == 0:
		w.WriteString(open)
	case w.indent >= 0:
		w.WriteString(",")
	default:
		w.WriteString(", ")
	}
	w.line(depth + 1)
}

func (w *jsonWriter) close(both string, n, depth int) {
	if n == 0 {
		w.WriteString(both)
		return
	}
	w.line(depth)
	w.WriteString(both[1:])
}

func (w *jsonWriter) line(depth int) {
	if w.indent >= 0 {
		w.WriteString("\n" + strings.Repeat(" ", w.indent*depth))
	}
}

func (w *jsonWriter) text(text string) {
	short := map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`}
	w.WriteByte('"')
	for _, r := range text {
		switch escaped, ok := short[r]; {
		case ok:
			w.WriteString(escaped)
		case r < ' ':
			fmt.Fprintf(w, `\u%04x`, r)
		default:
			w.WriteRune(r)
		}
	}
	w.WriteByte('"')
}

// number writes a float as repr of Python does.
func (w *jsonWriter) number(f float64) {
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if exponent := math.Floor(math.Log10(math.Abs(f))); f != 0 && (exponent < -4 || exponent >= 16) {
		text = strconv.FormatFloat(f, 'e', -1, 64)
	} else if !strings.Contains(text, ".") {
		text += ".0"
	}
	w.WriteString(text)
}
