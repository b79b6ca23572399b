package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

// A setting is a field of a request's body that a flag sets.
type setting struct {
	field string
	value any
}

// set puts what the command line names into a body, by the flags' names. What a
// file of JSON said of it gives way.
func set(c *cobra.Command, body map[string]any, settings map[string]setting) {
	for flag, s := range settings {
		if c.Flags().Changed(flag) {
			body[spelt(body, s.field)] = s.value
		}
		if c.Flags().Lookup(flag).Annotations[annotationField] == nil {
			bindFlag(c, flag, s.field)
		}
	}
}

// fileFlag names a file that holds a body; what is what it describes.
func fileFlag(c *cobra.Command, path *string, what string) {
	c.Flags().StringVar(path, "file", "", "JSON of a "+what+" as the REST interface takes it, whose fields these flags replace; - is standard input")
}

// required is the fault of a command line that lacks a flag.
func required(flag string) error { return usage.Errorf("--%s is required", flag) }

// requiredHere is the same where a file of JSON may hold the field instead.
func requiredHere(flag, field string) error {
	return usage.Errorf("--%s is required, here or as %s in --file", flag, field)
}

// jsonFile reads the object in a file, or on standard input where the path is
// "-"; without a path it is empty.
func jsonFile(c *cobra.Command, path string) (map[string]any, error) {
	object := map[string]any{}
	if path == "" {
		return object, nil
	}
	text, err := readInput(c, path)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // as they were written
	if err := decoder.Decode(&object); err != nil || object == nil {
		return nil, fmt.Errorf("%s must hold one object of JSON: %w", called(path), cmp.Or(err, errors.New("it holds null")))
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, fmt.Errorf("%s must hold one object of JSON and nothing after it", called(path))
	}
	return object, nil
}

// spelt is the key under which an object holds a field: as the interface
// writes it, or in snake_case, which it takes too.
func spelt(object map[string]any, field string) string {
	var snake strings.Builder
	for _, r := range field {
		if unicode.IsUpper(r) {
			snake.WriteByte('_')
		}
		snake.WriteRune(unicode.ToLower(r))
	}
	if _, ok := object[snake.String()]; ok {
		return snake.String()
	}
	return field
}
