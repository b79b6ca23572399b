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

// fileFlag adds the flag --file to c, which stores the name of a file with a request body in path.
// noun is the word for the resource in the help.
func fileFlag(c *cobra.Command, path *string, noun string) {
	c.Flags().StringVar(path, "file", "",
		"JSON file of the "+noun+" as the API accepts it; other flags override its fields; - reads standard input")
}

// required returns the usage error for a command line without the required flag.
func required(flag string) error { return usage.Errorf("--%s is required", flag) }

// readJSONFile reads the JSON object in the file at path, or on standard input if path is "-". If
// path is "", it returns an empty object.
func readJSONFile(c *cobra.Command, path string) (map[string]any, error) {
	object := map[string]any{}
	if path == "" {
		return object, nil
	}
	text, err := readInput(c, path)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // keeps the digits of numbers as they are
	if err := decoder.Decode(&object); err != nil || object == nil {
		return nil, fmt.Errorf("%s must contain one JSON object: %w", inputName(path),
			cmp.Or(err, errors.New("it contains null")))
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, fmt.Errorf("%s must contain one JSON object and nothing after it", inputName(path))
	}
	return object, nil
}

// keyOf returns the key of a field in an object that a user wrote: in snake_case, which the API
// also accepts, if the object has that key, and otherwise in camelCase.
func keyOf(object map[string]any, field string) string {
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
