// Package schemas has the JSON Schemas (2020-12) of the data of all event types. They are the
// contract with readers of the log: within one version of an event type, a schema only gains
// optional fields.
//
// A schema describes an event both as it is stored and as the API returns it, without secrets. It
// also describes the events of earlier releases, so a field that was added later is optional.
package schemas

import (
	"embed"
	"io/fs"
	"path"
	"strings"
)

// `make golden` generates the files from the Go types of the events; see TestContract.
//
//go:embed data
var files embed.FS

const (
	directory = "data"
	suffix    = ".json"
)

// Of returns the JSON Schema for the data of an event type; false for an unknown type.
func Of(eventType string) (schema []byte, ok bool) {
	data, err := fs.ReadFile(files, path.Join(directory, eventType+suffix))
	return data, err == nil && !strings.Contains(eventType, "/")
}

// Types returns all event types in ascending order.
func Types() []string {
	entries, err := fs.ReadDir(files, directory)
	if err != nil {
		panic(err) // cannot fail, because the directory is embedded in the program
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = strings.TrimSuffix(entry.Name(), suffix)
	}
	return names
}
