package openapi

import (
	"cmp"
	"maps"
	"reflect"
	"unicode"

	"anneal/api/wire"
)

// A Documentation describes the wire types of a package. A key of Rules and Fields is the name of a
// field (state), or of a type and its field (Deployment.state). The latter takes precedence.
type Documentation struct {
	Rules  map[string]wire.Rule
	Fields map[string]string // descriptions of fields by key
	Types  map[string]string // descriptions of types by name
}

// merge returns one Documentation with the entries of all. It panics if two of them have the same
// key.
func merge(all []Documentation) Documentation {
	var merged Documentation
	for _, one := range all {
		merged = Documentation{Joined(merged.Rules, one.Rules), Joined(merged.Fields, one.Fields),
			Joined(merged.Types, one.Types)}
	}
	return merged
}

// Joined returns one map with the entries of all tables of a Documentation. It panics if two tables
// have the same key, because one text would replace the other.
func Joined[V any](tables ...map[string]V) map[string]V {
	all := map[string]V{}
	for _, table := range tables {
		for key := range table {
			if _, twice := all[key]; twice {
				panic("openapi: two tables describe " + key)
			}
		}
		maps.Copy(all, table)
	}
	return all
}

// RuleOf returns the rule of the field of the type owner, or the zero Rule if it has none.
func RuleOf(rules map[string]wire.Rule, owner, field string) wire.Rule {
	if own, ok := rules[owner+"."+field]; ok {
		return own
	}
	return rules[field]
}

// TextOf returns the description of the field of the type owner, or "" if it has none.
func (d Documentation) TextOf(owner, field string) string {
	return cmp.Or(d.Fields[owner+"."+field], d.Fields[field])
}

// ComponentName returns the name of a type's schema component in the document.
func ComponentName(t reflect.Type) string {
	name := []rune(t.Name())
	name[0] = unicode.ToUpper(name[0])
	return string(name)
}

// Values returns a function that lists the values of an enumerated field according to rules, so
// that filters can check them: see query.Fields.WithValues.
func Values(rules map[string]wire.Rule) func(in reflect.Type, field string) []string {
	return func(in reflect.Type, field string) []string { return RuleOf(rules, ComponentName(in), field).Enum }
}
