package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

// A field is a field of a request's body that a flag of its own sets.
type field struct {
	flag       string
	path       string // dotted path of the field
	value      any    // default of the flag, which determines its type: string, int, float64 or bool
	usage      string
	collection string // collection of the resource that the flag names; "" if it names no resource
	required   bool
}

// addFields adds a flag to c for each field.
func addFields(c *cobra.Command, fields []field) {
	flags := c.Flags()
	for _, f := range fields {
		switch value := f.value.(type) {
		case string:
			flags.String(f.flag, value, f.usage)
		case int:
			flags.Int(f.flag, value, f.usage)
		case float64:
			flags.Float64(f.flag, value, f.usage)
		case bool:
			flags.Bool(f.flag, value, f.usage)
		default:
			panic(fmt.Sprintf("--%s has a default of type %T", f.flag, f.value))
		}
		if f.collection != "" {
			bindReference(c, f.flag, f.path, f.collection)
		} else {
			bindFlag(c, f.flag, f.path)
		}
	}
}

// fillBody sets the fields of a body whose flags are given, also if the body already has them from
// --file. It returns a usage error if a required field is missing.
func fillBody(c *cobra.Command, client *client, fields []field, body map[string]any) error {
	for _, f := range fields {
		if c.Flags().Changed(f.flag) {
			if err := setField(body, f.path, f.read(c, client)); err != nil {
				return err
			}
		}
		if f.required && fieldAt(body, f.path) == nil {
			return usage.Errorf("--%s is required, as a flag or as the field %s of the JSON in --file", f.flag, f.path)
		}
	}
	return nil
}

// read returns the value of the flag as the JSON of the API has it: a resource by its full name.
func (f field) read(c *cobra.Command, client *client) (value any) {
	switch flags := c.Flags(); f.value.(type) {
	case string:
		text, _ := flags.GetString(f.flag)
		if f.collection != "" {
			return client.name(f.collection, text)
		}
		return text
	case int:
		value, _ = flags.GetInt(f.flag)
	case float64:
		value, _ = flags.GetFloat64(f.flag)
	case bool:
		value, _ = flags.GetBool(f.flag)
	}
	return value
}

// setField sets the field at a dotted path of a JSON object, and creates the objects on the path.
func setField(object map[string]any, path string, value any) error {
	first, rest, nested := strings.Cut(path, ".")
	key := keyOf(object, first)
	if !nested {
		object[key] = value
		return nil
	}
	if object[key] == nil {
		object[key] = map[string]any{}
	}
	inner, ok := object[key].(map[string]any)
	if !ok {
		return fmt.Errorf("%s must be a JSON object", first)
	}
	return setField(inner, rest, value)
}

// fieldAt returns the field at a dotted path of a JSON object; nil if it is missing.
func fieldAt(object map[string]any, path string) any {
	first, rest, nested := strings.Cut(path, ".")
	value := object[keyOf(object, first)]
	if !nested {
		return value
	}
	inner, _ := value.(map[string]any)
	return fieldAt(inner, rest)
}
