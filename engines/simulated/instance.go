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

// maxGenerated bounds the items of a generated array and the characters of a
// generated string.
const maxGenerated = 1000

// An instance generates a value that conforms to a JSON Schema. It supports the
// most common keywords and rejects all others.
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

var alwaysKnown = []string{"type", "title", "description", "default", "examples", "$schema", "$comment"}

func (i *instance) of(schema any, at string) any {
	s, ok := schema.(map[string]any)
	if !ok {
		i.require(schema == true, at, "must be a schema that some value conforms to")
		return nil
	}
	if value, given := s["const"]; given {
		i.alone(s, at, "const")
		return value
	}
	for _, word := range []string{"enum", "anyOf"} {
		ways, given := s[word].([]any)
		if !given || len(ways) == 0 {
			continue
		}
		i.alone(s, at, word)
		n := i.source.IntN(len(ways))
		if word == "anyOf" {
			return i.of(ways[n], fmt.Sprintf("%s/anyOf/%d", at, n))
		}
		return ways[n]
	}
	kind := kindOf(s)
	i.alone(s, at, byType[kind]...)
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
	i.require(false, at, "has an unknown type")
	return nil
}

// kindOf returns the first type of a schema, or the type that its keywords imply.
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

// alone rejects keywords other than these and annotations.
func (i *instance) alone(s map[string]any, at string, words ...string) {
	for word := range s {
		known := slices.Contains(words, word) || slices.Contains(alwaysKnown, word)
		i.require(known, at+"/"+word, "is not supported by a simulated model: leave it out")
	}
}

func (i *instance) object(s map[string]any, at string) any {
	properties, _ := s["properties"].(map[string]any)
	needed, _ := s["required"].([]any)
	made := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if slices.Contains(needed, any(name)) || i.source.IntN(2) == 0 {
			made[name] = i.of(properties[name], at+"/properties/"+name)
		}
	}
	for _, one := range needed {
		name := fmt.Sprint(one)
		if _, there := made[name]; there {
			continue
		}
		more, given := s["additionalProperties"]
		if !given {
			more = true
		}
		made[name] = i.of(more, at+"/additionalProperties")
	}
	return made
}

func (i *instance) array(s map[string]any, at string) any {
	made := []any{}
	for range i.between(s, at, "minItems", "maxItems", 0, 2) {
		item, given := s["items"]
		if !given {
			item = true
		}
		made = append(made, i.of(item, at+"/items"))
	}
	return made
}

func (i *instance) text(s map[string]any, at string) any {
	length := i.between(s, at, "minLength", "maxLength", 1, 20)
	var text []rune
	for len(text) < length {
		text = append(text, []rune(words[i.source.IntN(len(words))]+" ")...)
	}
	return string(text[:length])
}

// between draws a count between the values of two keywords, of which each may be
// missing: the default minimum is from, the default range usual.
func (i *instance) between(s map[string]any, at, minWord, maxWord string, from, usual int) int {
	low, given := s[minWord].(float64)
	if !given {
		low = float64(from)
	}
	high, bounded := s[maxWord].(float64)
	if !bounded {
		high = low + float64(usual)
	}
	if !given && high < low {
		low = high
	}
	ok := low >= 0 && low <= maxGenerated && high >= low
	i.require(ok, at, "requires a count outside of 0 to %d, or has an empty range", maxGenerated)
	if !ok {
		return 0
	}
	return int(low) + i.source.IntN(int(min(high-low, float64(usual)))+1)
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
	first := math.Ceil(low)
	if first > high && !whole && low <= high {
		return low
	}
	i.require(first <= high, at, "allows no number")
	if first > high {
		return nil
	}
	return first + float64(i.source.IntN(int(min(high-first, 9))+1))
}
