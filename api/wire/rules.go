package wire

// A Schema is a JSON Schema (2020-12), as OpenAPI 3.1 uses it.
type Schema map[string]any

// A Rule restricts the values of a field further than its type does.
type Rule struct {
	Enum      []string
	min, max  *float64
	MaxLength int // maximum length of a string, in characters
	MaxItems  int // maximum number of items of a list
	Pattern   string
	example   any
	Both      bool // the field is part of requests and responses, although its api tag says only one of them
	// schema that replaces the one of the field's Go type, for fields with values of several types
	Instead Schema
}

// Apply adds the restrictions of the rule to a field's schema.
func (r Rule) Apply(schema Schema) {
	target := schema
	if items, ok := schema["items"].(Schema); ok && (len(r.Enum) > 0 || r.Pattern != "") {
		target = items
	}
	if r.Instead != nil {
		clear(schema)
		for key, value := range r.Instead {
			schema[key] = value
		}
		return
	}
	if len(r.Enum) > 0 {
		target["enum"] = r.Enum
	}
	if r.Pattern != "" {
		target["pattern"] = r.Pattern
	}
	if r.min != nil {
		schema["minimum"] = *r.min
	}
	if r.max != nil {
		schema["maximum"] = *r.max
	}
	if r.MaxLength > 0 {
		schema["maxLength"] = r.MaxLength
	}
	if r.MaxItems > 0 {
		schema["maxItems"] = r.MaxItems
	}
	if r.example != nil {
		schema["examples"] = []any{r.example}
	}
}

// Between returns a rule that allows numbers from low to high, both included.
func Between(low, high float64) Rule { return Rule{min: &low, max: &high} }

// Min returns a rule that allows numbers of at least low.
func Min(low float64) Rule { return Rule{min: &low} }

// OneOf returns a rule that allows only the given values.
func OneOf(values ...string) Rule { return Rule{Enum: values} }

// CountPattern matches a 64-bit integer as a decimal string.
const CountPattern = "^-?[0-9]+$"
