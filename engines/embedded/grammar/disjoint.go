package grammar

import "slices"

// maxPairs is the maximum number of pairs of alternatives that requireDisjoint compares.
const maxPairs = 10_000

// requireDisjoint records a violation unless it can prove that no value conforms to two
// alternatives of a oneOf. Only then does a grammar of all alternatives enforce the oneOf.
func (k *schemaKit) requireDisjoint(g *group) {
	if n := len(g.ways); n*n/2 > maxPairs {
		k.require(false, g.at, "has too many alternatives to prove them disjoint: use anyOf")
		return
	}
	for i, a := range g.ways {
		for _, b := range g.ways[:i] {
			if !k.reported[g.at.at] {
				k.require(k.disjoint(a, b, 0), g.at, "has alternatives that may both match, %s and %s: "+
					"use anyOf, or give them a required property with different const values", b.at, a.at)
			}
		}
	}
}

// disjoint reports whether it can prove that no value conforms to both schemas: by their types, by
// their enum or const values, or by those of a property that both schemas require. depth is the
// number of properties on the path from the first call.
func (k *schemaKit) disjoint(a, b *value, depth int) bool {
	one, other := k.all([]*value{a}, nil), k.all([]*value{b}, nil)
	aTypes, _ := k.types(one.plain)
	bTypes, _ := k.types(other.plain)
	if len(both(aTypes, bTypes)) == 0 && len(both(bTypes, aTypes)) == 0 {
		return true
	}
	aValues, bValues := listed(one.plain), listed(other.plain)
	if aValues != nil && bValues != nil {
		return !slices.ContainsFunc(aValues, func(v string) bool { return slices.Contains(bValues, v) })
	}
	onlyObjects := len(aTypes) == 1 && aTypes[0] == "object" || len(bTypes) == 1 && bTypes[0] == "object"
	if !onlyObjects || depth > 4 {
		return false
	}
	for _, m := range properties(one.plain) {
		for _, n := range properties(other.plain) {
			if m.name == n.name && requires(one.plain, m.name) && requires(other.plain, m.name) && k.disjoint(m.value, n.value,
				depth+1) {
				return true
			}
		}
	}
	return false
}

// listed returns the enum and const values of the first schema that has any, as text. It returns
// nil if none has, or if one of the values is a number, an object or an array: the texts of equal
// values can then differ, such as 1 and 1.0.
func listed(all []*schema) []string {
	for _, s := range all {
		if s.literals == nil {
			continue
		}
		var values []string
		for _, v := range s.literals {
			if v.kind != "string" && v.kind != "boolean" && v.kind != "null" {
				return nil
			}
			values = append(values, v.written())
		}
		return values
	}
	return nil
}

func properties(all []*schema) []member {
	var members []member
	for _, s := range all {
		members = append(members, s.object.properties...)
	}
	return members
}

func requires(all []*schema, name string) bool {
	return slices.ContainsFunc(all, func(s *schema) bool { return slices.Contains(s.object.required, name) })
}
