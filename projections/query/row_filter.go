package query

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"anneal/domain"
)

// CompileRowFilter compiles an AIP-160 filter over rows of a dataset, which are JSON objects
// without a schema, into a function that reports whether a row matches. Syntax and limits are those
// of Fields.Filter, with these differences:
//
//	messages.role:"tool"          any element of the list messages has the role tool
//	input.topic = math*           * stands for any characters
//	score >= 0.5 AND NOT draft = true
//	ground_truth = null           the field exists and is null
//	"team-a".lead:*               quotes around names with special characters
//
// The type of the field determines the comparison: the value in the filter is compared with a text
// as text, with a number as a number, and with true, false and null by name. In a filter, "5" and 5
// are the same value. If the field is absent or cannot be compared with the value, = < <= > >= and
// : are false and != is true. On a list, only : is possible: it tests whether any element equals
// the value. On an object, : tests for a key. :* tests whether a field exists and is neither null
// nor an empty text, list or object. A word without a field matches when any text of the row
// contains it.
//
// The error of CompileRowFilter is a domain.Error with code InvalidArgument and a violation of the
// field "filter". The error of the function says why a row is not a JSON object.
func CompileRowFilter(text string) (func(row []byte) (bool, error), error) {
	matches, err := compileFilter(&scope{root: freeRoot}, text)
	if err != nil {
		var v domain.Violations
		v.Add("filter", "%v", err)
		return nil, v.Err()
	}
	return func(row []byte) (bool, error) {
		object, err := decodeRow(row)
		if err != nil {
			return false, err
		}
		return matches.row(renderedCandidate(&object)), nil
	}, nil
}

var freeRoot = &field{shape: anyJSON, typ: reflect.TypeFor[map[string]any]()}

func decodeRow(row []byte) (map[string]any, error) {
	decoder := json.NewDecoder(bytes.NewReader(row))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			return nil, fmt.Errorf("the row must be a JSON object, not %s", kind.Value)
		}
		return nil, fmt.Errorf("the row is not valid JSON: %w", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, errors.New("the row must be one JSON object, with nothing after it")
	}
	if object == nil {
		return nil, errors.New("the row must be a JSON object, not null")
	}
	return object, nil
}

// freeTest returns a test of a JSON value. It compares the member at the path members with value,
// using the operator op.
func freeTest(members []string, op, value string) test {
	match := freeValueTest(op, value)
	each := op == ":"
	return test{value: func(v reflect.Value) bool { return freeAny(v.Interface(), members, each, match) }}
}

// freeAny reports whether test returns true for the member of the JSON value v that has the path
// members. If inLists is set, the path leads through lists into each of their elements, and one
// member for which test returns true suffices.
func freeAny(v any, members []string, inLists bool, test func(any) bool) bool {
	for i, name := range members {
		switch in := v.(type) {
		case map[string]any:
			below, ok := in[name]
			if !ok {
				return false
			}
			v = below
		case []any:
			if !inLists {
				return false
			}
			for _, element := range in {
				if freeAny(element, members[i:], inLists, test) {
					return true
				}
			}
			return false
		default:
			return false
		}
	}
	return test(v)
}

func freeValueTest(op, value string) func(any) bool {
	if op == ":" && value == anyValue {
		return freePresent
	}
	scalar := freeScalarTest(op, value)
	if op != ":" {
		return scalar
	}
	equal := freeScalarTest("=", value)
	return func(v any) bool {
		switch v := v.(type) {
		case []any:
			for _, element := range v {
				if equal(element) {
					return true
				}
			}
			return false
		case map[string]any:
			_, has := v[value]
			return has
		}
		return scalar(v)
	}
}

func freeScalarTest(op, value string) func(any) bool {
	match := ordering(op)
	texts := textMatch(op, value)
	whole, notWhole := strconv.ParseInt(value, 10, 64)
	real, notReal := strconv.ParseFloat(value, 64)
	names := op == "=" || op == ":"
	return func(v any) bool {
		switch v := v.(type) {
		case string:
			return texts(v)
		case json.Number:
			if at, err := strconv.ParseInt(v.String(), 10, 64); err == nil && notWhole == nil {
				return match(cmp.Compare(at, whole))
			}
			at, err := v.Float64()
			return err == nil && notReal == nil && real == real && match(cmp.Compare(at, real))
		case bool:
			return names && strconv.FormatBool(v) == value
		case nil:
			return names && value == "null"
		}
		return false
	}
}

func freePresent(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return true
}

// searchFree reports whether found returns true for any text in a JSON value.
func searchFree(v any, found func(string) bool) bool {
	switch v := v.(type) {
	case string:
		return found(v)
	case []any:
		for _, element := range v {
			if searchFree(element, found) {
				return true
			}
		}
	case map[string]any:
		for _, element := range v {
			if searchFree(element, found) {
				return true
			}
		}
	}
	return false
}

// named returns the parts of the field name on the left side of a comparison; false if the left
// side is not a name. left and ok are the results of dotted for it. If the left side is a text in
// quotes, which only filters over dataset rows accept as a name, quoted is the text.
func named(root *field, left []string, quoted string, ok bool) ([]string, bool) {
	if !ok && root.shape == anyJSON && strings.TrimSpace(quoted) != "" {
		return []string{quoted}, true
	}
	return left, ok
}
