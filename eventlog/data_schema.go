package eventlog

import "anneal/domain"

// UsageRecorded is the type of the events in the stream of usage records.
const UsageRecorded = "usage.recorded.v1"

// The URI of a schema is absolute, as CloudEvents requires of dataschema, and does not name a server,
// so that it is the same in all copies of an event. Its path is that of the schema on every server.
const (
	schemaScheme = "anneal:"
	// SchemaPath is the path on a server below which the schema of each type of event is.
	SchemaPath   = "/schemas/"
	schemaSuffix = ".json"
)

// dataSchemas has the value of the header ce-dataschema by type of event.
var dataSchemas = dataSchemaHeaders()

func dataSchemaHeaders() map[string][]string {
	uris := map[string][]string{}
	add := func(eventType string) {
		uris[eventType] = []string{schemaScheme + SchemaPath + eventType + schemaSuffix}
	}
	for _, kind := range domain.Kinds {
		for eventType := range kind.EventTypes() {
			add(eventType)
		}
	}
	add(UsageRecorded)
	return uris
}

// DataSchema returns the URI of the JSON Schema of the data of a type of event; "" for an unknown
// type. See package schemas.
func DataSchema(eventType string) string {
	if uri := dataSchemas[eventType]; uri != nil {
		return uri[0]
	}
	return ""
}
