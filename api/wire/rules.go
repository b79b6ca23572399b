package wire

// A Schema is one of JSON Schema 2020-12, as OpenAPI 3.1 has it.
type Schema map[string]any

// A Rule restricts the values of a field beyond its type.
type Rule struct {
	Enum      []string
	min, max  *float64
	MaxLength int // characters of a text
	MaxItems  int // of a list
	Pattern   string
	example   any
	Both      bool   // in requests and in answers, although the type says one
	Instead   Schema // the whole schema, for values of several types
}

// Apply writes the rule into a schema.
func (r Rule) Apply(to Schema) {
	target := to
	if items, ok := to["items"].(Schema); ok && (len(r.Enum) > 0 || r.Pattern != "") {
		target = items
	}
	if r.Instead != nil {
		clear(to)
		for key, value := range r.Instead {
			to[key] = value
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
		to["minimum"] = *r.min
	}
	if r.max != nil {
		to["maximum"] = *r.max
	}
	if r.MaxLength > 0 {
		to["maxLength"] = r.MaxLength
	}
	if r.MaxItems > 0 {
		to["maxItems"] = r.MaxItems
	}
	if r.example != nil {
		to["examples"] = []any{r.example}
	}
}

// Between returns the rule of numbers from low to high.
func Between(low, high float64) Rule { return Rule{min: &low, max: &high} }

// AtLeast returns the rule of numbers that are not below low.
func AtLeast(low float64) Rule { return Rule{min: &low} }

// OneOf returns the rule of an enumeration.
func OneOf(values ...string) Rule { return Rule{Enum: values} }
