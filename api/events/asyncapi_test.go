package events

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/schemas"
	"anneal/internal/testutil"
)

// asyncAPISchema is schemas/3.0.0-without-$id.json of the npm package @asyncapi/specs 6.11.1
// (license Apache-2.0): the JSON Schema of AsyncAPI 3.0.0 documents.
const asyncAPISchema = "testdata/asyncapi-3.0.0.json.gz"

func compile(t *testing.T, url string, document any) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource(url, document))
	schema, err := c.Compile(url)
	require.NoError(t, err)
	return schema
}

func parse(t *testing.T, data []byte) any {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	require.NoError(t, err)
	return value
}

// TestAsyncAPI checks that the document is valid AsyncAPI 3.0.0, that its references have targets,
// and that it describes every type of event.
func TestAsyncAPI(t *testing.T) {
	packed := testutil.ReadFile(t, asyncAPISchema)
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	require.NoError(t, err)
	source, err := jsonschema.UnmarshalJSON(unpacked)
	require.NoError(t, err)
	schema := compile(t, "https://asyncapi.example/3.0.0.json", source)
	document := parse(t, asyncAPI()).(object)
	require.NoError(t, schema.Validate(document))
	document["channels"].(object)["events"].(object)["colour"] = "red"
	require.Error(t, schema.Validate(document), "the schema rejects unknown fields")

	references := 0
	var resolve func(any)
	resolve = func(value any) {
		switch v := value.(type) {
		case object:
			if to, ok := v["$ref"].(string); ok {
				references++
				var at any = document
				for part := range strings.SplitSeq(strings.TrimPrefix(to, "#/"), "/") {
					below, found := at.(object)[part]
					require.True(t, found, to)
					at = below
				}
			}
			for _, below := range v {
				resolve(below)
			}
		case []any:
			for _, below := range v {
				resolve(below)
			}
		}
	}
	resolve(document)
	require.Greater(t, references, 3*len(schemas.Types()))
	messages := document["channels"].(object)["events"].(object)["messages"].(object)
	for _, kind := range domain.Kinds {
		for eventType := range kind.EventTypes() {
			require.Contains(t, messages, eventType)
		}
	}
	require.Len(t, messages, len(schemas.Types())-1, "usage records have their own channel")
}

// TestEnvelopesAreDescribed checks that the schemas of the AsyncAPI document describe an event in
// both modes.
func TestEnvelopesAreDescribed(t *testing.T) {
	components := parse(t, asyncAPI()).(object)["components"].(object)["schemas"].(object)
	e := eventlog.Event{Record: domain.Record{Type: "dataset.accepted.v1", State: "READY",
		Data: json.RawMessage(`{"upload": 1, "attempt": "2"}`)}, Position: 7, ID: "id",
		Name: "accounts/acme/datasets/d", Actor: "a", Command: "c", Cause: "x", Correlation: "r",
		ControlPlane: "p", ClientAddress: "192.0.2.1",
		Trace: domain.Trace{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", State: "a=1"}}

	stored := object{}
	for name, values := range http.Header(eventlog.Encode(e).Header) {
		stored[name] = values[0]
	}
	headers := compile(t, "https://anneal.example/headers.json", components["Headers"])
	require.NoError(t, headers.Validate(stored))
	require.Len(t, stored, len(headers.Properties), "each header is described: %v", stored)
	for name := range stored {
		require.Contains(t, headers.Properties, name)
	}

	data := testutil.Marshal(t, eventlog.Structured(e))
	event := parse(t, data).(object)
	structured := compile(t, "https://anneal.example/event.json", components["CloudEvent"])
	require.NoError(t, structured.Validate(event))
	for name := range event {
		require.Contains(t, structured.Properties, name)
	}
	require.Len(t, event, len(structured.Properties))
	delete(event, "subject")
	require.Error(t, structured.Validate(event))
}

// TestShownEventsAreValid checks that every form of every stored event is valid by its schema after
// the API has removed secrets.
func TestShownEventsAreValid(t *testing.T) {
	samples := testutil.ReadFile(t, "../../domain/testdata/catalogue.txt")
	changed := 0
	for line := range strings.Lines(string(samples)) {
		eventType, body, _ := strings.Cut(strings.TrimSpace(line), " ")
		source, ok := schemas.Of(eventType)
		require.True(t, ok, eventType)
		shown := redact(eventlog.Event{Record: domain.Record{Type: eventType, Data: json.RawMessage(body)}})
		if string(shown.Data) != body {
			changed++
		}
		require.NoError(t, compile(t, eventlog.DataSchema(eventType), parse(t, source)).Validate(parse(t, shown.Data)),
			"%s %s", eventType, shown.Data)
	}
	require.Greater(t, changed, 20)
}
