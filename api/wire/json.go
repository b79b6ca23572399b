package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"anneal/domain"
)

// MaxDepth is the maximum nesting of objects and arrays in a request.
const MaxDepth = 64

// Parse decodes one JSON value: objects as map[string]any, arrays as []any, numbers as json.Number.
// It rejects invalid UTF-8, duplicate keys, nesting beyond MaxDepth, and text after the value.
func Parse(data []byte) (any, error) {
	if !utf8.Valid(data) {
		return nil, Malformed("the body is not valid UTF-8: encode it as UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	value, err := parseValue(dec, 0)
	if err != nil {
		return nil, explainJSON(err, data)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, Malformed("the body has text after its JSON value (%s): send one JSON "+
			"value", place(data, dec.InputOffset()))
	}
	return value, nil
}

func parseValue(dec *json.Decoder, depth int) (any, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	delim, nested := token.(json.Delim)
	if !nested {
		return token, nil
	}
	if depth++; depth > MaxDepth {
		return nil, Malformed("the body nests objects and arrays more than %d levels deep: send a flatter value", MaxDepth)
	}
	if delim == '[' {
		array := []any{}
		for dec.More() {
			element, err := parseValue(dec, depth)
			if err != nil {
				return nil, err
			}
			array = append(array, element)
		}
		_, err := dec.Token()
		return array, err
	}
	object := map[string]any{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, err
		}
		key := token.(string) // a key is always a string: the decoder returns an error for other tokens
		if _, twice := object[key]; twice {
			return nil, Malformed("the body has the key %s twice in one object: give it once", Quote(key))
		}
		if object[key], err = parseValue(dec, depth); err != nil {
			return nil, err
		}
	}
	_, err = dec.Token()
	return object, err
}

func explainJSON(err error, data []byte) error {
	var fault *domain.Error
	if errors.As(err, &fault) {
		return fault
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return Malformed("the body is empty: send a JSON object")
	}
	var whole json.RawMessage
	var syntax *json.SyntaxError
	// offset from the first byte of the body
	if errors.As(json.Unmarshal(data, &whole), &syntax) && syntax.Offset < int64(len(data)) {
		return Malformed("the body is not JSON (%s): %s", place(data, syntax.Offset), syntax.Error())
	}
	return Malformed("the body ends before its JSON value is complete: send the whole value")
}

func place(data []byte, offset int64) string {
	before := data[:min(max(offset, 0), int64(len(data)))]
	line := bytes.Count(before, []byte{'\n'}) + 1
	return fmt.Sprintf("line %d, column %d", line, len(before)-bytes.LastIndexByte(before, '\n')-1)
}

func Malformed(format string, args ...any) error {
	f := domain.Errorf(domain.InvalidArgument, format, args...)
	f.Reason = "MALFORMED_JSON"
	return f
}

// Quote returns a text of a request in quotes, for a message. It truncates the text to 64
// characters and escapes control characters.
func Quote(text string) string {
	if runes := []rune(text); len(runes) > 64 {
		text = string(runes[:64]) + "…"
	}
	return strconv.Quote(text)
}

// NotEOF returns err, or nil if it is io.EOF.
func NotEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
