// Package schemas has the JSON Schema (2020-12) of the data of every type of event: the contract with
// readers of the log. Within a version of a type, a schema only gains optional fields.
//
// A schema describes both forms of an event: as stored, and as the API shows it, without secrets. It
// describes the events of all earlier releases too, so that fields that were added later are optional.
package schemas

import (
	"embed"
	"io/fs"
	"path"
	"strings"
)

// The files are written by `make golden` from the Go types of the events: see TestContract.
//
//go:embed data
var files embed.FS

const (
	directory = "data"
	suffix    = ".json"
)

// Of returns the schema of the data of a type of event; false for an unknown type.
func Of(eventType string) (schema []byte, ok bool) {
	data, err := fs.ReadFile(files, path.Join(directory, eventType+suffix))
	return data, err == nil && !strings.Contains(eventType, "/")
}

// Types returns the types of events in order.
func Types() []string {
	entries, err := fs.ReadDir(files, directory)
	if err != nil {
		panic(err) // the directory is embedded
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = strings.TrimSuffix(entry.Name(), suffix)
	}
	return names
}
