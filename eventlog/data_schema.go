package eventlog

import "anneal/domain"

// UsageRecorded is the event type of usage records, which are in the usage stream and not in the
// log.
const UsageRecorded = "usage.recorded.v1"

// The URI of an event schema is absolute, as CloudEvents requires of the attribute dataschema. It
// has no server name, so that all copies of an event have the same URI. The URI's path is the path
// at which every control plane serves the schema.
const (
	schemaScheme = "anneal:"
	// SchemaPath is the path of the HTTP API below which the JSON Schemas of all event types are
	// served.
	SchemaPath   = "/schemas/"
	schemaSuffix = ".json"
)

// dataSchemas maps an event type to the value of its header ce-dataschema.
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

// DataSchema returns the URI of the JSON Schema for the data of an event type; "" for an unknown
// type. Package schemas has the schemas.
func DataSchema(eventType string) string {
	if uri := dataSchemas[eventType]; uri != nil {
		return uri[0]
	}
	return ""
}
