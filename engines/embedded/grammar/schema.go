package grammar

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"

	"anneal/domain"
)

const (
	maxForms    = 20_000 // maximum number of combinations of subschemas that become rules
	maxReported = 20     // maximum number of reported violations
)

// A schemaKit compiles a JSON Schema of draft 2020-12 to a grammar. It supports the keywords that
// an automaton can enforce.
//
// The grammar generates only some of the values that conform: properties in the order of the
// schema, additional properties only if the schema has additionalProperties, and without the
// keyword type only the types to which the other keywords apply.
type schemaKit struct {
	*jsonKit
	id         string // makes the rule names of several schemas in one grammar distinct
	root       *value
	schemas    map[*value]*schema
	violations domain.Violations
	reported   map[string]bool
}

// Schema compiles source, the JSON Schema in a request field. The error lists unsupported keywords
// with their paths in the schema, at most maxReported.
func Schema(source []byte, field string) (*Grammar, error) {
	k := newSchemaKit(newJSONKit())
	e, err := k.compile(source, field)
	if err != nil {
		return nil, within(field, err)
	}
	g, err := k.build(k.rule("root", e))
	return g, within(field, err)
}

// within adds the request field to the message of err. It returns an error with violations
// unchanged, because they already name their fields.
func within(field string, err error) error {
	var f *domain.Error
	if errors.As(err, &f) && len(f.Violations) == 0 {
		return domain.Errorf(f.Code, "%s: %s", field, f.Message)
	}
	return err
}

func newSchemaKit(kit *jsonKit) *schemaKit {
	return &schemaKit{jsonKit: kit, schemas: map[*value]*schema{}, reported: map[string]bool{}}
}

// compile returns an expression that matches the values that conform to the schema in source. field
// is the request field, for errors.
func (k *schemaKit) compile(source []byte, field string) (expr, error) {
	root, err := readDocument(source)
	if err != nil {
		return nil, err
	}
	k.root, k.violations = root, domain.Violations{}
	e := k.form(k.all([]*value{root}, nil))
	var v domain.Violations
	for _, one := range k.violations {
		v.Add(field, "%s %s", one.Field, one.Description)
	}
	return e, v.Err()
}

// require records a violation for subschema unless ok is true. It records at most one violation for
// each subschema.
func (k *schemaKit) require(ok bool, subschema *value, format string, args ...any) {
	if !ok && !k.reported[subschema.at] && len(k.violations) < maxReported {
		k.reported[subschema.at] = true
		k.violations.Add(subschema.at, format, args...)
	}
}

// A conjunction is a list of schemas and groups. A value must conform to all of them.
type conjunction struct {
	plain  []*schema
	groups []*group
}

// all parses the subschemas at places, and returns the conjunction of them and of extra. A nil
// extra adds nothing.
func (k *schemaKit) all(places []*value, extra *conjunction) *conjunction {
	c := &conjunction{}
	if extra != nil {
		c.plain, c.groups = slices.Clone(extra.plain), slices.Clone(extra.groups)
	}
	seen := map[*value]bool{}
	for len(places) > 0 {
		v := places[len(places)-1]
		places = places[:len(places)-1]
		if seen[v] {
			continue
		}
		seen[v] = true
		s := k.read(v)
		c.plain, c.groups = append(c.plain, s), append(c.groups, s.groups...)
		places = append(places, s.beside...)
	}
	slices.SortFunc(c.plain, func(a, b *schema) int { return cmp.Compare(a.id, b.id) })
	slices.SortFunc(c.groups, func(a, b *group) int { return cmp.Compare(a.id, b.id) })
	c.plain, c.groups = slices.Compact(c.plain), slices.Compact(c.groups)
	return c
}

// form returns an expression that matches the values that conform to a conjunction.
func (k *schemaKit) form(c *conjunction) expr {
	var key strings.Builder
	key.WriteString("schema " + k.id)
	for _, s := range c.plain {
		key.WriteString(" " + strconv.Itoa(s.id))
	}
	key.WriteString(" or")
	for _, g := range c.groups {
		key.WriteString(" " + strconv.Itoa(g.id))
	}
	if len(k.created) > maxForms {
		k.fail("the schema is too large: its parts have more than %d combinations; simplify it", maxForms)
		return never
	}
	return k.named(key.String(), func() expr {
		if len(c.groups) > 0 {
			return k.ways(c)
		}
		return k.plain(c.plain)
	})
}

// ways returns an expression with an alternative for each alternative of the first group of c, each
// combined with the rest of c.
func (k *schemaKit) ways(c *conjunction) expr {
	first := c.groups[0]
	rest := &conjunction{c.plain, c.groups[1:]}
	if first.exclusive {
		k.requireDisjoint(first)
	}
	var ways []expr
	for _, one := range first.ways {
		ways = append(ways, k.form(k.all([]*value{one}, rest)))
	}
	return alt(ways...)
}

// plain returns an expression that matches the values that conform to all schemas. The schemas have
// no groups.
func (k *schemaKit) plain(all []*schema) expr {
	types, literal := k.types(all)
	if literal {
		return k.literal(all, types)
	}
	var ways []expr
	for _, name := range types {
		switch name {
		case "object":
			ways = append(ways, k.objects(all))
		case "array":
			ways = append(ways, k.arrays(all))
		case "string":
			ways = append(ways, k.texts(all))
		case "number", "integer":
			ways = append(ways, k.numbers(all, name == "integer"))
		case "boolean":
			ways = append(ways, literals("true", "false"))
		case "null":
			ways = append(ways, text("null"))
		}
	}
	return alt(append(ways, never)...)
}

// types returns the types that all schemas allow. literal reports whether a schema has an enum or
// const.
func (k *schemaKit) types(all []*schema) (types []string, literal bool) {
	types = typeNames
	given := false
	var hints []string
	for _, s := range all {
		if s.never {
			return nil, false
		}
		literal, given = literal || s.literals != nil, given || s.types != nil
		hints = append(hints, s.hints...)
		if s.types != nil {
			types = both(types, s.types)
		}
	}
	if !given && !literal && len(hints) > 0 {
		types = both(types, hints)
	}
	if slices.Contains(types, "number") { // the type number includes the type integer
		types = slices.DeleteFunc(slices.Clone(types), func(t string) bool { return t == "integer" })
	}
	return types, literal
}

// both returns the types that are in a and in b. If b has number, it includes integer.
func both(a, b []string) []string {
	return kept(a, func(name string) bool {
		return slices.Contains(b, name) || name == "integer" && slices.Contains(b, "number")
	})
}

// literal returns an expression that matches the values in the enum and const of all schemas that
// have a type in types.
func (k *schemaKit) literal(all []*schema, types []string) expr {
	var values, kinds []string
	first := true
	for _, s := range all {
		if s.literals == nil {
			continue
		}
		var own []string
		for _, v := range s.literals {
			if ofType(v, types) {
				own = append(own, v.written())
				kinds = append(kinds, v.kind)
			}
		}
		if !first {
			own = kept(own, func(v string) bool { return slices.Contains(values, v) })
		}
		values, first = own, false
	}
	if len(values) == 0 {
		return never
	}
	for _, s := range all {
		for i, hint := range s.hints {
			k.require(!slices.Contains(kinds, hint), s.keywords[i],
				"cannot be enforced together with enum or const: omit one of them")
		}
	}
	slices.Sort(values)
	return literals(slices.Compact(values)...)
}

func ofType(v *value, types []string) bool {
	if v.kind != "number" {
		return slices.Contains(types, v.kind)
	}
	return slices.Contains(types, "number") || slices.Contains(types, "integer") && !strings.ContainsAny(v.text, ".eE")
}
