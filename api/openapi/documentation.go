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
	Fields map[string]string // descriptions by key
	Types  map[string]string // descriptions by name of the type
}

// merge returns one Documentation with the entries of all. It panics if two of them have the same
// key.
func merge(all []Documentation) Documentation {
	merged := Documentation{map[string]wire.Rule{}, map[string]string{}, map[string]string{}}
	for _, one := range all {
		add(merged.Rules, one.Rules)
		add(merged.Fields, one.Fields)
		add(merged.Types, one.Types)
	}
	return merged
}

func add[V any](all, more map[string]V) {
	for key := range more {
		if _, twice := all[key]; twice {
			panic("openapi: " + key + " is described by two packages")
		}
	}
	maps.Copy(all, more)
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
