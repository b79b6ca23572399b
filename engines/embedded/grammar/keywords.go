package grammar

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"anneal/domain"
)

// typeNames are the JSON types, in the order in which the grammar has them as alternatives.
var typeNames = []string{"object", "array", "string", "number", "integer", "boolean", "null"}

// maxExactInteger is the largest integer n such that float64 represents all integers up to n
// exactly.
const maxExactInteger = 1<<53 - 1

// A schema is a parsed subschema. The targets of its $ref, and its allOf, anyOf and oneOf are still
// JSON values, which schemaKit.read parses when they are needed.
type schema struct {
	id       int
	at       string
	never    bool       // the subschema is false: no value conforms
	beside   []*value   // subschemas of $ref and allOf, to which a value must also conform
	groups   []*group   // alternatives of anyOf and oneOf
	types    []string   // allowed types; nil allows all
	hints    []string   // types to which keywords other than type apply
	literals []*value   // values of enum and const; nil if there are none
	keywords []*value   // keywords[i] is the value of the keyword that applies to the type hints[i]
	object   objectRule // keywords that apply to objects
	array    arrayRule
	text     textRule
	number   numberRule
}

// A group has the alternatives of an anyOf or oneOf. A value must conform to at least one of them.
type group struct {
	id        int
	at        *value
	ways      []*value
	exclusive bool // the group is a oneOf: a value must conform to exactly one alternative
}

type objectRule struct {
	declares   bool // the schema has the keyword properties
	properties []member
	required   []string
	additional *value   // value of additionalProperties; nil if absent
	only       []string // names that propertyNames allows; nil allows all
}

type arrayRule struct {
	first    []*value
	rest     *value // schema of the items after those in first; nil if absent
	min, max int
}

type textRule struct {
	min, max int
	patterns []string // regular expressions of the keyword pattern
	at       []*value // at[i] is the value in the schema from which patterns[i] comes
}

type numberRule struct{ low, high bound }

// A bound is a lower or upper limit of a number. An open bound excludes the limit. given is false
// if the schema has no such bound.
type bound struct {
	at          int64
	open, given bool
}

// tighten replaces b by limit if limit is the stricter bound. inward is the direction of
// the allowed numbers: 1 for a lower bound, -1 for an upper bound.
func (b *bound) tighten(limit bound, inward int64) {
	if further := (limit.at - b.at) * inward; limit.given && (!b.given || further > 0 || further == 0 && limit.open) {
		*b = limit
	}
}

// annotations are the keywords without an effect on validation.
var annotations = []string{
	"title", "description", "default", "examples", "example", "$schema", "$comment", "$defs", "definitions",
	"deprecated", "readOnly", "writeOnly", "contentMediaType", "contentEncoding",
}

// A keyword parses a keyword of a schema. hint is the JSON type to which the keyword applies.
type keyword struct {
	hint string
	read func(k *schemaKit, s *schema, v *value)
}

var keywords = map[string]keyword{
	"type":  {"", readType},
	"enum":  {"", func(k *schemaKit, s *schema, v *value) { k.literals(s, v, k.list(v)) }},
	"const": {"", func(k *schemaKit, s *schema, v *value) { k.literals(s, v, []*value{v}) }},
	"$ref":  {"", func(k *schemaKit, s *schema, v *value) { s.beside = append(s.beside, k.target(v)) }},
	"allOf": {"", func(k *schemaKit, s *schema, v *value) { s.beside = append(s.beside, k.list(v)...) }},
	"not": {"", func(k *schemaKit, s *schema, v *value) {
		all := v.kind == "boolean" && v.on || v.kind == "object" && len(v.members) == 0
		k.require(all, v, "cannot be enforced: omit it, or state it in a description")
		s.never = s.never || all
	}},
	"anyOf": {"", func(k *schemaKit, s *schema, v *value) {
		s.groups = append(s.groups, &group{v.id, v, k.list(v), false})
	}},
	"oneOf": {"", func(k *schemaKit, s *schema, v *value) {
		s.groups = append(s.groups, &group{v.id, v, k.list(v), true})
	}},

	"properties": {"object", func(k *schemaKit, s *schema, v *value) {
		k.require(v.kind == "object", v, "must be an object")
		s.object.declares, s.object.properties = true, v.members
	}},
	"required": {"object", func(k *schemaKit, s *schema, v *value) {
		for _, one := range k.list(v) {
			k.require(one.kind == "string", one, "must be the name of a property")
			s.object.required = append(s.object.required, one.text)
		}
	}},
	"additionalProperties": {"object", func(_ *schemaKit, s *schema, v *value) { s.object.additional = v }},
	"propertyNames":        {"object", readNames},

	"prefixItems": {"array", func(k *schemaKit, s *schema, v *value) { s.array.first = k.list(v) }},
	"items": {"array", func(_ *schemaKit, s *schema, v *value) {
		if v.kind == "array" { // before draft 2020-12, items as an array had the meaning of prefixItems
			s.array.first = v.items
		} else {
			s.array.rest = v
		}
	}},
	"additionalItems": {"array", func(_ *schemaKit, s *schema, v *value) { s.array.rest = v }},
	"minItems":        {"array", func(k *schemaKit, s *schema, v *value) { s.array.min = k.count(v) }},
	"maxItems":        {"array", func(k *schemaKit, s *schema, v *value) { s.array.max = k.count(v) }},
	"uniqueItems": {"array", func(k *schemaKit, _ *schema, v *value) {
		k.require(v.kind == "boolean" && !v.on, v, "cannot be enforced: omit it")
	}},

	"minLength": {"string", func(k *schemaKit, s *schema, v *value) { s.text.min = k.count(v) }},
	"maxLength": {"string", func(k *schemaKit, s *schema, v *value) { s.text.max = k.count(v) }},
	"pattern": {"string", func(k *schemaKit, s *schema, v *value) {
		k.require(v.kind == "string", v, "must be a regular expression")
		s.text.patterns, s.text.at = append(s.text.patterns, v.text), append(s.text.at, v)
	}},
	"format": {"string", func(k *schemaKit, s *schema, v *value) {
		pattern, ok := formats[v.text]
		k.require(ok, v, "%q cannot be enforced: use %s, or omit it", v.text, strings.Join(formatNames(), ", "))
		if ok {
			s.text.patterns, s.text.at = append(s.text.patterns, pattern), append(s.text.at, v)
		}
	}},

	"minimum":          {"number", func(k *schemaKit, s *schema, v *value) { k.bound(v, &s.number.low, false, 1) }},
	"maximum":          {"number", func(k *schemaKit, s *schema, v *value) { k.bound(v, &s.number.high, false, -1) }},
	"exclusiveMinimum": {"number", func(k *schemaKit, s *schema, v *value) { k.bound(v, &s.number.low, true, 1) }},
	"exclusiveMaximum": {"number", func(k *schemaKit, s *schema, v *value) { k.bound(v, &s.number.high, true, -1) }},
}

// read parses the subschema at v. It records unsupported keywords as violations.
func (k *schemaKit) read(v *value) *schema {
	if s := k.schemas[v]; s != nil {
		return s
	}
	s := &schema{id: v.id, at: v.at, never: v.kind == "boolean" && !v.on}
	s.array.max, s.text.max = unbounded, unbounded
	k.schemas[v] = s
	k.require(v.kind == "boolean" || v.kind == "object", v, "must be a schema: an object, true or false")
	k.tuples(v)
	for _, m := range v.members {
		word, known := keywords[m.name]
		switch {
		// A format that is not in formats is ignored if the schema also has a pattern.
		case m.name == "format" && m.kind == "string" && formats[m.text] == "" && v.get("pattern") != nil:
		case m.name == "pattern" && v.get("format") != nil && restated[v.get("format").text] == m.text && m.text != "":
		case known:
			word.read(k, s, m.value)
			if word.hint != "" {
				s.hints, s.keywords = append(s.hints, word.hint), append(s.keywords, m.value)
			}
		case m.name == "$id" && v.at == "#", slices.Contains(annotations, m.name), strings.HasPrefix(m.name, "x-"):
		case m.name == "multipleOf" && m.text == "1" && v.get("type") != nil && v.get("type").text == "integer":
		default:
			k.require(false, m.value, "cannot be enforced: omit it, or state it in a description")
		}
	}
	return s
}

// tuples records a violation if the subschema at v combines prefixItems, items and additionalItems
// in a way that no draft allows.
func (k *schemaKit) tuples(v *value) {
	items, more := v.get("items"), v.get("additionalItems")
	listed := items != nil && items.kind == "array"
	if more != nil {
		k.require(listed, more, "has an effect only if items is an array: omit it")
	}
	if listed {
		k.require(v.get("prefixItems") == nil, items, "must be a schema if prefixItems is present")
	}
}

// readNames parses the keyword propertyNames. It supports only an enum of names, and schemas that
// allow all names.
func readNames(k *schemaKit, s *schema, v *value) {
	ok := v.kind == "object" || v.kind == "boolean" && v.on
	for _, m := range v.members {
		switch {
		case m.name == "type" && m.text == "string":
		case m.name == "enum" && m.kind == "array":
			s.object.only = []string{}
			for _, one := range m.items {
				if one.kind == "string" {
					s.object.only = append(s.object.only, one.text)
				}
			}
		default:
			ok = false
		}
	}
	k.require(ok, v, "cannot be enforced: list the names in an enum, or omit it")
}

func readType(k *schemaKit, s *schema, v *value) {
	names := []*value{v}
	if v.kind == "array" {
		names = k.list(v)
	}
	s.types = []string{}
	for _, one := range names {
		k.require(one.kind == "string" && slices.Contains(typeNames, one.text), one, "%s",
			domain.OneOfRule(one.text, typeNames))
		s.types = append(s.types, one.text)
	}
}

func (k *schemaKit) literals(s *schema, at *value, list []*value) {
	k.require(s.literals == nil, at, "enum and const cannot be combined: use one of them")
	s.literals = list
}

// list returns the items of v. It records a violation if v is not a list, or if v is an empty list,
// which only the keyword required allows.
func (k *schemaKit) list(v *value) []*value {
	k.require(v.kind == "array", v, "must be a list")
	k.require(v.kind != "array" || len(v.items) > 0 || strings.HasSuffix(v.at, "/required"), v, "must not be empty")
	return v.items
}

func (k *schemaKit) count(v *value) int {
	n, err := strconv.ParseFloat(v.text, 64)
	ok := v.kind == "number" && err == nil && n >= 0 && n <= maxRepeats && n == math.Trunc(n)
	k.require(ok, v, "must be an integer from 0 to %d", maxRepeats)
	if !ok {
		return 0
	}
	return int(n)
}

// bound parses v as a limit of a number, and tightens b by it. inward is the direction of the
// allowed numbers: 1 for a lower bound, -1 for an upper bound.
func (k *schemaKit) bound(v *value, b *bound, open bool, inward int64) {
	f, err := strconv.ParseFloat(v.text, 64)
	ok := v.kind == "number" && err == nil && f == math.Trunc(f)
	k.require(ok, v, "must be an integer: other limits cannot be enforced")
	if ok {
		b.tighten(bound{int64(max(min(f, maxExactInteger), -maxExactInteger)), open, true}, inward)
	}
}

// target returns the subschema to which a $ref with the value v refers.
func (k *schemaKit) target(v *value) *value {
	at := v.text
	if v.kind != "string" || at != "#" && !strings.HasPrefix(at, "#/") {
		k.require(false, v, "must refer to a part of this schema, such as #/$defs/name")
		return v
	}
	to := k.root
	for _, step := range strings.Split(at, "/")[1:] {
		name := strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
		next := to.get(name)
		if i, err := strconv.Atoi(name); to.kind == "array" && err == nil && i >= 0 && i < len(to.items) {
			next = to.items[i]
		}
		if next == nil {
			k.require(false, v, "refers to %q, which does not exist", at)
			return v
		}
		to = next
	}
	return to
}
