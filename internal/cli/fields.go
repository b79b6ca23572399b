package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

// field is a field of a request's body that a flag sets.
type field struct {
	flag       string
	path       string // dotted path in the body
	value      any    // default of the flag, of its type: string, int, float64 or bool
	usage      string
	collection string // collection of the resource that the value names; "" if the value is no name
	required   bool
}

// addFields adds the flags of fields to a command.
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

// fillBody sets the fields of a body for the flags that are set, and replaces fields from a file.
// It returns an error if a required field is missing.
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

// read returns the value of the flag as the body contains it.
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

// setField sets the field of a JSON object at a dotted path. Missing objects are created.
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

// fieldAt returns the field of a JSON object at a dotted path; nil if there is none.
func fieldAt(object map[string]any, path string) any {
	first, rest, nested := strings.Cut(path, ".")
	value := object[keyOf(object, first)]
	if !nested {
		return value
	}
	inner, _ := value.(map[string]any)
	return fieldAt(inner, rest)
}
