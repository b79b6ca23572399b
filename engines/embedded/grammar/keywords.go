package grammar

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// The types of JSON, in the order in which values of several are offered.
var typeNames = []string{"object", "array", "string", "number", "integer", "boolean", "null"}

// maxWhole is the greatest whole number that a float64 holds for certain.
const maxWhole = 1<<53 - 1

// A schema is what one place of a JSON Schema says by itself, and the places
// that hold beside it.
type schema struct {
	id       int
	at       string
	never    bool       // the schema false
	beside   []*value   // of $ref and allOf
	groups   []*group   // of anyOf and oneOf
	types    []string   // that are allowed; nil for all
	hints    []string   // types that the other keywords speak of
	literals []*value   // of enum and const; nil for none
	keywords []*value   // that gave each of the hints
	object   objectRule // keywords of objects
	array    arrayRule
	text     textRule
	number   numberRule
}

// A group is schemas one of which must hold.
type group struct {
	id    int
	at    *value
	ways  []*value
	alone bool // no two of them may hold at once
}

type objectRule struct {
	declares   bool // properties are given
	properties []member
	required   []string
	additional *value   // nil when absent
	only       []string // the names that are allowed; nil for all
}

type arrayRule struct {
	first       []*value
	rest        *value // nil when absent
	least, most int
}

type textRule struct {
	least, most int
	patterns    []string // regular expressions
	at          []*value // where each of them is written
}

type numberRule struct{ low, high bound }

// A bound is where allowed numbers begin or end; an open one is not allowed
// itself.
type bound struct {
	at          int64
	open, given bool
}

// tighten takes over the other bound where it allows less.
func (b *bound) tighten(other bound, inward int64) {
	if further := (other.at - b.at) * inward; other.given && (!b.given || further > 0 || further == 0 && other.open) {
		*b = other
	}
}

// annotations say nothing about what conforms.
var annotations = []string{"title", "description", "default", "examples", "example", "$schema", "$comment", "$defs", "definitions",
	"deprecated", "readOnly", "writeOnly", "contentMediaType", "contentEncoding"}

// A keyword reads one keyword of a schema. hints are the types that it speaks
// of.
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
		k.require(all, v, "cannot be enforced: leave it out, or say it in a description")
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
		if v.kind == "array" { // as before draft 2020-12
			s.array.first = v.items
		} else {
			s.array.rest = v
		}
	}},
	"additionalItems": {"array", func(_ *schemaKit, s *schema, v *value) { s.array.rest = v }},
	"minItems":        {"array", func(k *schemaKit, s *schema, v *value) { s.array.least = k.count(v) }},
	"maxItems":        {"array", func(k *schemaKit, s *schema, v *value) { s.array.most = k.count(v) }},
	"uniqueItems": {"array", func(k *schemaKit, _ *schema, v *value) {
		k.require(v.kind == "boolean" && !v.on, v, "cannot be enforced: leave it out")
	}},

	"minLength": {"string", func(k *schemaKit, s *schema, v *value) { s.text.least = k.count(v) }},
	"maxLength": {"string", func(k *schemaKit, s *schema, v *value) { s.text.most = k.count(v) }},
	"pattern": {"string", func(k *schemaKit, s *schema, v *value) {
		k.require(v.kind == "string", v, "must be text: a regular expression")
		s.text.patterns, s.text.at = append(s.text.patterns, v.text), append(s.text.at, v)
	}},
	"format": {"string", func(k *schemaKit, s *schema, v *value) {
		pattern, ok := formats[v.text]
		k.require(ok, v, "%q cannot be enforced: use %s, or leave it out", v.text, strings.Join(formatNames(), ", "))
		if ok {
			s.text.patterns, s.text.at = append(s.text.patterns, pattern), append(s.text.at, v)
		}
	}},

	"minimum":          {"number", func(k *schemaKit, s *schema, v *value) { k.bound(v, &s.number.low, false, 1) }},
	"maximum":          {"number", func(k *schemaKit, s *schema, v *value) { k.bound(v, &s.number.high, false, -1) }},
	"exclusiveMinimum": {"number", func(k *schemaKit, s *schema, v *value) { k.bound(v, &s.number.low, true, 1) }},
	"exclusiveMaximum": {"number", func(k *schemaKit, s *schema, v *value) { k.bound(v, &s.number.high, true, -1) }},
}

// read is what a place says. What cannot be enforced is a violation.
func (k *schemaKit) read(v *value) *schema {
	if s := k.schemas[v]; s != nil {
		return s
	}
	s := &schema{id: v.id, at: v.at, never: v.kind == "boolean" && !v.on}
	s.array.most, s.text.most = unbounded, unbounded
	k.schemas[v] = s
	k.require(v.kind == "boolean" || v.kind == "object", v, "must be a schema: an object, true or false")
	k.tuples(v)
	for _, m := range v.members {
		word, known := keywords[m.name]
		switch {
		case m.name == "format" && m.kind == "string" && formats[m.text] == "" && v.get("pattern") != nil: // which says what the name means
		case m.name == "pattern" && v.get("format") != nil && restated[v.get("format").text] == m.text && m.text != "":
		case known:
			word.read(k, s, m.value)
			if word.hint != "" {
				s.hints, s.keywords = append(s.hints, word.hint), append(s.keywords, m.value)
			}
		case m.name == "$id" && v.at == "#", slices.Contains(annotations, m.name), strings.HasPrefix(m.name, "x-"):
		case m.name == "multipleOf" && m.text == "1" && v.get("type") != nil && v.get("type").text == "integer":
		default:
			k.require(false, m.value, "cannot be enforced: leave it out, or say it in a description")
		}
	}
	return s
}

// tuples checks how a list of items may be written: as prefixItems, or as items
// with additionalItems.
func (k *schemaKit) tuples(v *value) {
	items, more := v.get("items"), v.get("additionalItems")
	listed := items != nil && items.kind == "array"
	if more != nil {
		k.require(listed, more, "says something only beside a list of items: leave it out")
	}
	if listed {
		k.require(v.get("prefixItems") == nil, items, "must be a schema beside prefixItems")
	}
}

// readNames reads how properties may be called: anyhow, or as a list says.
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
	k.require(ok, v, "cannot be enforced: list them in an enum, or leave it out")
}

func readType(k *schemaKit, s *schema, v *value) {
	names := []*value{v}
	if v.kind == "array" {
		names = k.list(v)
	}
	s.types = []string{}
	for _, one := range names {
		k.require(one.kind == "string" && slices.Contains(typeNames, one.text), one, "must be one of %s", strings.Join(typeNames, ", "))
		s.types = append(s.types, one.text)
	}
}

func (k *schemaKit) literals(s *schema, at *value, list []*value) {
	k.require(s.literals == nil, at, "cannot be enforced beside enum: give one of them")
	s.literals = list
}

// list is the items of a list, of which there must be some.
func (k *schemaKit) list(v *value) []*value {
	k.require(v.kind == "array", v, "must be a list")
	k.require(v.kind != "array" || len(v.items) > 0 || strings.HasSuffix(v.at, "/required"), v, "must not be empty")
	return v.items
}

func (k *schemaKit) count(v *value) int {
	n, err := strconv.ParseFloat(v.text, 64)
	ok := v.kind == "number" && err == nil && n >= 0 && n <= maxRepeats && n == math.Trunc(n)
	k.require(ok, v, "must be a whole number from 0 to %d", maxRepeats)
	if !ok {
		return 0
	}
	return int(n)
}

// bound reads a limit of numbers; inward is where numbers are allowed.
func (k *schemaKit) bound(v *value, b *bound, open bool, inward int64) {
	f, err := strconv.ParseFloat(v.text, 64)
	ok := v.kind == "number" && err == nil && f == math.Trunc(f)
	k.require(ok, v, "must be a whole number: others cannot be enforced")
	if ok {
		b.tighten(bound{int64(max(min(f, maxWhole), -maxWhole)), open, true}, inward)
	}
}

// target is the place that a $ref names.
func (k *schemaKit) target(v *value) *value {
	at := v.text
	if v.kind != "string" || at != "#" && !strings.HasPrefix(at, "#/") {
		k.require(false, v, "must name a place in this schema, such as #/$defs/name")
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
			k.require(false, v, "names %q, which is not in this schema", at)
			return v
		}
		to = next
	}
	return to
}
