package tinker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"anneal/domain"
)

// Reasons of errors.
const (
	BodyTooLarge  = "BODY_TOO_LARGE"
	BodyNotValid  = "BODY_NOT_VALID"
	EncodingError = "CONTENT_ENCODING_NOT_SUPPORTED"
)

// decompressor returns the decoder of compressed bodies. It refuses bodies that are larger than
// MaxPassBody, and is safe for concurrent use.
var decompressor = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(MaxPassBody),
		zstd.WithDecoderMaxWindow(MaxPassBody))
})

// ReadBody reads and decompresses a body of at most limit bytes before and after decompression;
// limit is at most MaxPassBody. encoding is the header Content-Encoding: "", "identity" or
// EncodingZstd.
func ReadBody(r io.Reader, encoding string, limit int) ([]byte, error) {
	tooLarge := func(form string) error {
		return &domain.Error{Code: domain.InvalidArgument, Reason: BodyTooLarge,
			Message: fmt.Sprintf("the %s has more than %d bytes: send less data in one request", form, limit)}
	}
	encoding = strings.ToLower(strings.TrimSpace(encoding))
	if encoding != "" && encoding != "identity" && encoding != EncodingZstd {
		return nil, &domain.Error{Code: domain.InvalidArgument, Reason: EncodingError,
			Message: fmt.Sprintf("Content-Encoding must be %q or absent, is %s", EncodingZstd, quote(encoding))}
	}
	body, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err != nil {
		return nil, domain.Errorf(domain.Unavailable, "read the body: %v", err)
	}
	if len(body) > limit {
		return nil, tooLarge("body")
	}
	if encoding != EncodingZstd {
		return body, nil
	}
	decoder, err := decompressor()
	if err != nil {
		return nil, domain.Errorf(domain.Internal, "open the zstd decoder: %v", err)
	}
	plain, err := decoder.DecodeAll(body, nil)
	switch {
	case errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) || len(plain) > limit:
		return nil, tooLarge("decompressed body")
	case err != nil:
		return nil, notValid("the body is not valid zstd: %v; Content-Encoding says that it is", err)
	}
	return plain, nil
}

func notValid(format string, args ...any) *domain.Error {
	return &domain.Error{Code: domain.InvalidArgument, Reason: BodyNotValid, Message: fmt.Sprintf(format, args...)}
}

// A Request is a request with a JSON body.
type Request interface {
	check(v *domain.Violations)
}

// Decode decodes and checks the JSON body of a request; an empty body stands for an empty object.
// It returns an InvalidArgument error with all violations. Fields that are not known are refused
// unless they are null, false, 0 or empty: newer clients send the defaults of fields that they do
// not use.
func Decode[T any, P interface {
	*T
	Request
}](body []byte) (T, error) {
	var request T
	var v domain.Violations
	if err := decodeObject(&v, body, &request); err != nil {
		return request, err
	}
	if len(v) == 0 {
		P(&request).check(&v)
	}
	return request, v.Err()
}

// decodeObject decodes a JSON body into the struct that out points to. It returns an error if the
// body is not a JSON object, and adds fields with values of the wrong type to v.
func decodeObject(v *domain.Violations, body []byte, out any) error {
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		body = []byte("{}")
	}
	if !json.Valid(body) {
		return notValid("the body is not valid JSON: %v", json.Unmarshal(body, new(json.RawMessage)))
	}
	if body[0] != '{' {
		return notValid("the body must be a JSON object, is %s", jsonKind(body))
	}
	decodeValue(v, body, reflect.ValueOf(out).Elem(), "")
	return nil
}

// A valueDecoder is a type with its own JSON decoder.
type valueDecoder interface {
	decodeValue(v *domain.Violations, raw json.RawMessage, path string)
}

// decodeValue decodes a JSON value into out. Null leaves it as it is.
func decodeValue(v *domain.Violations, raw json.RawMessage, out reflect.Value, path string) {
	if isNull(raw) || len(*v) > domain.MaxViolations {
		return
	}
	if own, ok := out.Addr().Interface().(valueDecoder); ok {
		own.decodeValue(v, raw, path)
		return
	}
	kind := out.Kind()
	switch {
	case kind == reflect.Pointer:
		out.Set(reflect.New(out.Type().Elem()))
		decodeValue(v, raw, out.Elem(), path)
	case kind == reflect.Struct:
		decodeStruct(v, raw, out, path)
	case kind == reflect.Slice && out.Type().Elem().Kind() == reflect.Struct:
		var elements []json.RawMessage
		if !decodeLeaf(v, raw, &elements, path) {
			return
		}
		out.Set(reflect.MakeSlice(out.Type(), len(elements), len(elements)))
		for i, element := range elements {
			v.Require(!isNull(element), index(path, i), "must not be null")
			decodeValue(v, element, out.Index(i), index(path, i))
		}
	case kind == reflect.Map && out.Type().Elem().Kind() == reflect.Struct:
		var entries map[string]json.RawMessage
		if !decodeLeaf(v, raw, &entries, path) {
			return
		}
		if len(entries) > MaxLossInputs {
			v.Add(path, "must have at most %d entries, has %d", MaxLossInputs, len(entries))
			return
		}
		out.Set(reflect.MakeMap(out.Type()))
		for _, key := range slices.Sorted(maps.Keys(entries)) {
			value := reflect.New(out.Type().Elem()).Elem()
			decodeValue(v, entries[key], value, join(path, quoteKey(key)))
			out.SetMapIndex(reflect.ValueOf(key), value)
		}
	default:
		decodeLeaf(v, raw, out.Addr().Interface(), path)
	}
}

func decodeStruct(v *domain.Violations, raw json.RawMessage, out reflect.Value, path string) {
	var given map[string]json.RawMessage
	if !decodeLeaf(v, raw, &given, path) {
		return
	}
	known := fieldsOf(out.Type())
	for _, key := range slices.Sorted(maps.Keys(given)) {
		i, ok := known[key]
		switch {
		case ok:
			decodeValue(v, given[key], out.Field(i), join(path, key))
		case key != "type" && !isEmpty(given[key]):
			v.Add(join(path, quoteKey(key)), "is not a field of this object%s",
				domain.UnknownName(short(key), "valid fields: ", slices.Sorted(maps.Keys(known))))
		}
	}
}

var structFields sync.Map // from reflect.Type to map[string]int

// fieldsOf returns the indexes of the fields of a struct by their JSON names.
func fieldsOf(t reflect.Type) map[string]int {
	if found, ok := structFields.Load(t); ok {
		return found.(map[string]int)
	}
	fields := map[string]int{}
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			fields[name] = i
		}
	}
	structFields.Store(t, fields)
	return fields
}

// decodeLeaf decodes a value with encoding/json, and adds a violation if it has another type.
func decodeLeaf(v *domain.Violations, raw json.RawMessage, out any, path string) bool {
	if err := json.Unmarshal(raw, out); err != nil {
		v.Add(cmpOr(path, "body"), "must be %s, is %s", typeName(reflect.TypeOf(out).Elem()), jsonValue(raw))
		return false
	}
	return true
}

func cmpOr(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// quoteKey returns a name from a request for an error message, quoted if necessary.
func quoteKey(key string) string {
	if checkpointName.MatchString(key) && len(key) <= MaxDisplayedText {
		return key
	}
	return quote(key)
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// isEmpty reports whether a JSON value is null, false, 0, or an empty text, list or object.
func isEmpty(raw json.RawMessage) bool {
	var value any
	if json.Unmarshal(raw, &value) != nil {
		return false
	}
	switch x := value.(type) {
	case nil:
		return true
	case []any:
		return len(x) == 0
	case map[string]any:
		return len(x) == 0
	}
	return value == false || value == "" || value == 0.0
}

// jsonKind returns the kind of a JSON value.
func jsonKind(raw json.RawMessage) string {
	if isNull(raw) {
		return "null"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	}
	return "a number"
}

// jsonValue returns a JSON value for an error message: long values only by their kind.
func jsonValue(raw json.RawMessage) string {
	if kind := jsonKind(raw); raw[0] == '{' || raw[0] == '[' {
		return kind + " with values of another type"
	}
	if len(raw) > MaxDisplayedText {
		return jsonKind(raw)
	}
	return string(raw)
}

// typeName returns the JSON type that a Go type requires.
func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "a boolean"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint64:
		return fmt.Sprintf("an integer of %d bits", t.Bits())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "base64"
		}
		return "a list of values that are each " + typeName(t.Elem())
	}
	return "an object"
}

// decodeInto decodes a JSON value into the value that out points to.
func decodeInto(v *domain.Violations, raw json.RawMessage, out any, path string) {
	decodeValue(v, raw, reflect.ValueOf(out).Elem(), path)
}
