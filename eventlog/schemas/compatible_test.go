package schemas_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// ofValues are the keywords of a JSON Schema that constrain a value itself, and not its fields or
// elements.
var ofValues = []string{"type", "format", "pattern", "minimum", "contentEncoding"}

// evolve compares the schema of a type's events in the contract with the schema that was generated
// from the Go type. It returns the new schema of the contract, and the changes that readers of
// events cannot bear, with the paths of the fields.
func evolve(path string, contract, generated object) (next object, breaks []string) {
	next = maps.Clone(generated)
	broken := func(format string, args ...any) {
		breaks = append(breaks, path+": "+fmt.Sprintf(format, args...))
	}
	for _, keyword := range ofValues {
		if before, now := contract[keyword], generated[keyword]; !reflect.DeepEqual(before, now) {
			broken("%s changes from %v to %v", keyword, before, now)
		}
	}
	for _, keyword := range []string{"items", "additionalProperties"} {
		before, was := contract[keyword].(object)
		now, is := generated[keyword].(object)
		if was != is {
			broken("%s is added or removed", keyword)
		} else if was {
			below, more := evolve(path+"[]", before, now)
			next[keyword], breaks = below, append(breaks, more...)
		}
	}
	before, _ := contract["properties"].(object)
	now, _ := generated["properties"].(object)
	if now == nil {
		if before != nil {
			broken("its fields are removed")
		}
		return next, breaks
	}
	properties := maps.Clone(now)
	required, _ := contract["required"].([]any)
	always, _ := generated["required"].([]any)
	for _, name := range slices.Sorted(maps.Keys(before)) {
		field, found := now[name].(object)
		if !found {
			breaks = append(breaks, path+"."+name+": the field is removed")
			continue
		}
		below, more := evolve(path+"."+name, before[name].(object), field)
		properties[name], breaks = below, append(breaks, more...)
		if slices.Contains(required, any(name)) && !slices.Contains(always, any(name)) {
			breaks = append(breaks, path+"."+name+": the field is no longer required")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if before[name] == nil && slices.Contains(always, any(name)) {
			breaks = append(breaks, path+"."+name+": the new field is required, but stored events lack it: add omitempty")
		}
	}
	next["properties"] = properties
	if delete(next, "required"); len(required) > 0 {
		next["required"] = required
	}
	return next, breaks
}

// withoutMissing removes from the required fields of a schema those that a sample lacks.
func withoutMissing(schema object, sample any) {
	switch value := sample.(type) {
	case object:
		if below, ok := schema["additionalProperties"].(object); ok {
			for _, one := range value {
				withoutMissing(below, one)
			}
		}
		required, _ := schema["required"].([]any)
		required = slices.DeleteFunc(required, func(name any) bool { _, found := value[name.(string)]; return !found })
		if delete(schema, "required"); len(required) > 0 {
			schema["required"] = required
		}
		properties, _ := schema["properties"].(object)
		for name, field := range properties {
			if one, found := value[name]; found {
				withoutMissing(field.(object), one)
			}
		}
	case []any:
		for _, one := range value {
			if below, ok := schema["items"].(object); ok {
				withoutMissing(below, one)
			}
		}
	}
}
