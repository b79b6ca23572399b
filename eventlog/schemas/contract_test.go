package schemas_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/metering"
	"anneal/eventlog/schemas"
	"anneal/internal/testutil"
)

var update = flag.Bool("update", false, "write the schemas of events")

// eventTypes yields the types of events with the Go types of their data.
func eventTypes() iter.Seq2[string, reflect.Type] {
	return func(yield func(string, reflect.Type) bool) {
		for _, kind := range domain.Kinds {
			for eventType, data := range kind.EventTypes() {
				if !yield(eventType, data) {
					return
				}
			}
		}
		yield(eventlog.UsageRecorded, reflect.TypeFor[metering.Record]())
	}
}

// TestContract checks that the schema of each type of event describes its Go type, and that it only
// gained optional fields. With -update (make golden) it writes the schemas, unless readers of
// events could not bear the change.
func TestContract(t *testing.T) {
	texts := textsOf(t, filepath.Join("..", "..", "domain"))
	for name, text := range textsOf(t, filepath.Join("..", "metering")) {
		texts[name] = text
	}
	g, all, known := generator{texts}, samples(t), map[string]bool{}
	for eventType, data := range eventTypes() {
		known[eventType] = true
		path := filepath.Join("data", eventType+".json")
		next := plain(t, g.schema(eventType, data))
		recorded, err := os.ReadFile(path)
		if err == nil {
			var contract object
			var breaks []string
			require.NoError(t, json.Unmarshal(recorded, &contract))
			if next, breaks = evolve(eventType, contract, next); len(breaks) > 0 {
				t.Errorf("readers of %s cannot bear this change: record it in events of a new version, "+
					"with an upcaster:\n%s", eventType, strings.Join(breaks, "\n"))
				continue
			}
		} else {
			require.True(t, *update, "%s has no schema: run make golden", eventType)
			for _, sample := range all[eventType] {
				withoutMissing(next, sample)
			}
		}
		encoded := encode(t, next)
		if *update {
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
			require.NoError(t, os.WriteFile(path, encoded, 0o666))
			continue
		}
		require.Equal(t, string(encoded), string(recorded), "%s is out of date: run make golden", path)
		served, ok := schemas.Of(eventType)
		require.True(t, ok)
		require.Equal(t, string(encoded), string(served), eventType)
	}
	if !*update {
		for _, eventType := range schemas.Types() {
			require.True(t, known[eventType], "logs contain events of type %s: the type must stay", eventType)
		}
	}
}

// plain returns the schema as encoding/json decodes it, so that schemas can be compared.
func plain(t *testing.T, schema object) (out object) {
	t.Helper()
	require.NoError(t, json.Unmarshal(encode(t, schema), &out))
	return out
}

func encode(t *testing.T, schema object) []byte {
	t.Helper()
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	require.NoError(t, encoder.Encode(schema))
	return out.Bytes()
}

// samples returns the samples of each type of event, in all forms that a release wrote.
func samples(t *testing.T) map[string][]any {
	t.Helper()
	data := testutil.ReadFile(t, filepath.Join("..", "..", "domain", "testdata", "catalogue.txt"))
	all := map[string][]any{}
	for line := range strings.Lines(string(data)) {
		eventType, body, ok := strings.Cut(strings.TrimSpace(line), " ")
		require.True(t, ok, line)
		sample, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
		require.NoError(t, err)
		all[eventType] = append(all[eventType], sample)
	}
	return all
}

// compiled returns the schema of a type of event, which must be a valid JSON Schema 2020-12.
func compiled(t *testing.T, eventType string) *jsonschema.Schema {
	t.Helper()
	data, ok := schemas.Of(eventType)
	require.True(t, ok, eventType)
	source, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource(eventlog.DataSchema(eventType), source))
	schema, err := c.Compile(eventlog.DataSchema(eventType))
	require.NoError(t, err)
	require.Equal(t, 2020, schema.DraftVersion, eventType)
	return schema
}

// TestSamples checks that all forms of stored events that a release wrote are valid by their
// schemas, and that the schemas reject events in which a required field is missing or any field has
// another type.
func TestSamples(t *testing.T) {
	rejected := 0
	for eventType, forms := range samples(t) {
		schema := compiled(t, eventType)
		for _, sample := range forms {
			assert.NoError(t, schema.Validate(sample), eventType)
			for name, value := range sample.(object) {
				changed := object{}
				for other, same := range sample.(object) {
					changed[other] = same
				}
				if field := schema.Properties[name]; field != nil { // other types are fields of former releases
					changed[name] = []any{true}
					if _, isList := value.([]any); isList {
						changed[name] = true
					}
					assert.Error(t, schema.Validate(changed), "%s.%s", eventType, name)
					rejected++
				}
				delete(changed, name)
				if err := schema.Validate(changed); slices.Contains(schema.Required, name) != (err != nil) {
					t.Errorf("%s without %s (%v): %v", eventType, name, value, err)
				}
			}
		}
	}
	require.Greater(t, rejected, 500)
}

// TestDataSchemas checks that the URI in the envelope of each event is that of its schema.
func TestDataSchemas(t *testing.T) {
	n := 0
	for eventType := range eventTypes() {
		n++
		require.Equal(t, "anneal:/schemas/"+eventType+".json", eventlog.DataSchema(eventType))
		compiled(t, eventType)
	}
	require.Len(t, schemas.Types(), n)
	require.Empty(t, eventlog.DataSchema("dataset.forgotten.v1"))
	for _, wrong := range []string{"", "..", "dataset.forgotten.v1", "../data/dataset.created.v1", "data/../x"} {
		_, ok := schemas.Of(wrong)
		require.False(t, ok, wrong)
	}
}

type contractPart struct {
	Size int `json:"size"`
}

// TestOnlyAdditions checks which changes of an event's Go type the contract accepts.
func TestOnlyAdditions(t *testing.T) {
	type before struct {
		Name  string                  `json:"name"`
		Note  string                  `json:"note,omitempty"`
		Parts []contractPart          `json:"parts"`
		ByKey map[string]contractPart `json:"byKey,omitempty"`
	}
	type part struct {
		Size int `json:"size"`
		Kind int `json:"kind"`
	}
	for _, one := range []struct {
		name  string
		after any
		wrong string // expected text of the refusal; "" for a change that is accepted
	}{
		{"no change", before{}, ""},
		{"a new optional field", struct {
			before
			More string `json:"more,omitempty"`
		}{}, ""},
		{"another description", before{}, ""},
		{"an optional field is always written", struct {
			before
			Note string `json:"note"`
		}{}, ""},
		{"a new required field", struct {
			before
			More string `json:"more"`
		}{}, "e.more: the new field is required, but stored events lack it: add omitempty"},
		{"a removed field", struct {
			Note  string                  `json:"note,omitempty"`
			Parts []contractPart          `json:"parts"`
			ByKey map[string]contractPart `json:"byKey,omitempty"`
		}{}, "e.name: the field is removed"},
		{"a removed optional field", struct {
			Name  string                  `json:"name"`
			Parts []contractPart          `json:"parts"`
			ByKey map[string]contractPart `json:"byKey,omitempty"`
		}{}, "e.note: the field is removed"},
		{"a required field becomes optional", struct {
			before
			Name string `json:"name,omitempty"`
		}{}, "e.name: the field is no longer required"},
		{"another type", struct {
			before
			Name int `json:"name"`
		}{}, "e.name: type changes from string to integer"},
		{"a value that can be null", struct {
			before
			Name *string `json:"name"`
		}{}, "e.name: type changes from string to [string null]"},
		{"a renamed field", struct {
			before
			Name string `json:"title"`
		}{}, "e.name: the field is removed"},
		{"a list becomes a value", struct {
			before
			Parts contractPart `json:"parts"`
		}{}, "e.parts: type changes"},
		{"a new required field of an element", struct {
			before
			Parts []part `json:"parts"`
		}{}, "e.parts[].kind: the new field is required"},
		{"a new required field of a value of a map", struct {
			before
			ByKey map[string]part `json:"byKey,omitempty"`
		}{}, "e.byKey[].kind: the new field is required"},
	} {
		t.Run(one.name, func(t *testing.T) {
			contract := plain(t, generator{}.schema("e", reflect.TypeFor[before]()))
			next, breaks := evolve("e", contract, plain(t, generator{}.schema("e", reflect.TypeOf(one.after))))
			if one.wrong != "" {
				require.Contains(t, fmt.Sprint(breaks), one.wrong)
				return
			}
			require.Empty(t, breaks)
			require.Equal(t, []any{"name", "parts"}, next["required"], "stored events lack other fields")
		})
	}
}
