package simulated

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	"anneal/domain"
)

// maxGenerated is the maximum number of items in a generated array, and of characters in a
// generated string.
const maxGenerated = 1000

// An instance generates a value that conforms to a JSON Schema. It supports the most common
// keywords and reports all others.
type instance struct {
	source     *rand.Rand
	violations domain.Violations
	field      string
}

// instanceOf generates a value that conforms to the schema in a field of a request.
func instanceOf(schema json.RawMessage, field string, source *rand.Rand) (any, error) {
	var root any
	if err := json.Unmarshal(schema, &root); err != nil {
		return nil, domain.Errorf(domain.InvalidArgument, "%s: the schema is not JSON: %v", field, err)
	}
	i := &instance{source: source, field: field}
	value := i.of(root, "#")
	return value, i.violations.Err()
}

func (i *instance) require(ok bool, at, format string, args ...any) {
	i.violations.Require(ok, i.field, "%s %s", at, fmt.Sprintf(format, args...))
}

// byType are the supported keywords of each type.
var byType = map[string][]string{
	"object":  {"properties", "required", "additionalProperties"},
	"array":   {"items", "minItems", "maxItems"},
	"string":  {"minLength", "maxLength"},
	"integer": {"minimum", "maximum"},
	"number":  {"minimum", "maximum"},
}

var annotations = []string{"type", "title", "description", "default", "examples", "$schema", "$comment"}

func (i *instance) of(schema any, at string) any {
	s, ok := schema.(map[string]any)
	if !ok {
		i.require(schema == true, at, "must be a schema that some value conforms to")
		return nil
	}
	if value, given := s["const"]; given {
		i.allowOnly(s, at, "const")
		return value
	}
	for _, word := range []string{"enum", "anyOf"} {
		choices, given := s[word].([]any)
		if !given || len(choices) == 0 {
			continue
		}
		i.allowOnly(s, at, word)
		n := i.source.IntN(len(choices))
		if word == "anyOf" {
			return i.of(choices[n], fmt.Sprintf("%s/anyOf/%d", at, n))
		}
		return choices[n]
	}
	kind := kindOf(s)
	i.allowOnly(s, at, byType[kind]...)
	switch kind {
	case "object":
		return i.object(s, at)
	case "array":
		return i.array(s, at)
	case "string":
		return i.text(s, at)
	case "integer", "number":
		return i.number(s, at, kind == "integer")
	case "boolean":
		return i.source.IntN(2) == 0
	case "null":
		return nil
	}
	i.require(false, at, "has the unknown type %q: use one of the types of JSON Schema", kind)
	return nil
}

// kindOf returns the first type of a schema, or the type to which its keywords apply.
func kindOf(s map[string]any) string {
	switch t := s["type"].(type) {
	case string:
		return t
	case []any:
		if len(t) > 0 {
			return fmt.Sprint(t[0])
		}
	}
	for _, kind := range []string{"object", "array", "string", "number"} {
		if slices.ContainsFunc(byType[kind], func(word string) bool { return s[word] != nil }) {
			return kind
		}
	}
	return "null"
}

// allowOnly reports a violation for each keyword of a schema that is not in words and not an
// annotation.
func (i *instance) allowOnly(s map[string]any, at string, words ...string) {
	for word := range s {
		known := slices.Contains(words, word) || slices.Contains(annotations, word)
		i.require(known, at+"/"+word, "is not supported by a simulated model: leave it out")
	}
}

func (i *instance) object(s map[string]any, at string) any {
	properties, _ := s["properties"].(map[string]any)
	required, _ := s["required"].([]any)
	object := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if slices.Contains(required, any(name)) || i.source.IntN(2) == 0 {
			object[name] = i.of(properties[name], at+"/properties/"+name)
		}
	}
	for _, one := range required {
		name := fmt.Sprint(one)
		if _, generated := object[name]; generated {
			continue
		}
		additional, given := s["additionalProperties"]
		if !given {
			additional = true
		}
		object[name] = i.of(additional, at+"/additionalProperties")
	}
	return object
}

func (i *instance) array(s map[string]any, at string) any {
	items := []any{}
	for range i.between(s, at, "minItems", "maxItems", 0, 2) {
		item, given := s["items"]
		if !given {
			item = true
		}
		items = append(items, i.of(item, at+"/items"))
	}
	return items
}

func (i *instance) text(s map[string]any, at string) any {
	length := i.between(s, at, "minLength", "maxLength", 1, 20)
	var text []rune
	for len(text) < length {
		text = append(text, []rune(words[i.source.IntN(len(words))]+" ")...)
	}
	return string(text[:length])
}

// between returns a random count that meets the keywords minWord and maxWord of a schema. The
// minimum is defaultMin if minWord is missing. The count is at most the minimum plus spread.
func (i *instance) between(s map[string]any, path, minWord, maxWord string, defaultMin, spread int) int {
	low, given := s[minWord].(float64)
	if !given {
		low = float64(defaultMin)
	}
	high, bounded := s[maxWord].(float64)
	if !bounded {
		high = low + float64(spread)
	}
	if !given && high < low {
		low = high
	}
	ok := low >= 0 && low <= maxGenerated && high >= low
	i.require(ok, path, "must have %s from 0 to %d, and %s no smaller than %[1]s", minWord, maxGenerated, maxWord)
	if !ok {
		return 0
	}
	return int(low) + i.source.IntN(int(min(high-low, float64(spread)))+1)
}

func (i *instance) number(s map[string]any, at string, whole bool) any {
	low, given := s["minimum"].(float64)
	high, bounded := s["maximum"].(float64)
	switch {
	case !given && bounded:
		low = high - 9
	case !bounded:
		high = low + 9
	}
	lowest := math.Ceil(low)
	if lowest > high && !whole && low <= high {
		return low
	}
	i.require(lowest <= high, at, "allows no number: lower the minimum or raise the maximum")
	if lowest > high {
		return nil
	}
	return lowest + float64(i.source.IntN(int(min(high-lowest, 9))+1))
}
