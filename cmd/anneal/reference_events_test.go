package main_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/metering"
	"anneal/eventlog/schemas"
)

// eventsIntroduction begins the page; ' stands for a backquote.
const eventsIntroduction = "" +
	"Each event is a CloudEvent: 'ce-type' is its name, 'ce-subject' the resource, 'ce-state'\n" +
	"the state that it leads to; 'ce-actor', 'ce-cause', 'ce-correlation', 'ce-command' and\n" +
	"'ce-controlplane' name its origin, 'ce-traceparent' and 'ce-tracestate' the trace of the request\n" +
	"that caused it. 'ce-dataschema' is the URI of the JSON Schema of the body,\n" +
	"'anneal:/schemas/TYPE.json': every server serves it at that path, and '/asyncapi.json' describes\n" +
	"all events.\n\n" +
	"The body is JSON with these fields. Events of earlier releases may lack those that are not marked\n" +
	"as always present. Within a version of an event, only optional fields are added.\n"

// eventsPage lists the events of every kind with the fields of their data.
func eventsPage() string {
	var page strings.Builder
	page.WriteString(strings.ReplaceAll(eventsIntroduction, "'", "`"))
	for _, kind := range domain.Kinds {
		fmt.Fprintf(&page, "\n## %s\n", kind.CollectionID())
		for event, data := range kind.EventTypes() {
			page.WriteString(eventSection(event, data))
		}
	}
	page.WriteString("\n## Usage records\n\nIn the stream `USAGE`.\n" +
		eventSection(eventlog.UsageRecorded, reflect.TypeFor[metering.Record]()))
	return page.String()
}

// shownSchema is the part of a schema that the reference shows.
type shownSchema struct {
	Type                 any
	Format, Description  string
	Required             []string
	Properties           map[string]shownSchema
	Items                *shownSchema
	AdditionalProperties *shownSchema
}

func eventSection(event string, data reflect.Type) string {
	source, _ := schemas.Of(event)
	var schema shownSchema
	if err := json.Unmarshal(source, &schema); err != nil {
		panic(err) // TestContract has compared it with the Go type
	}
	var section strings.Builder
	fmt.Fprintf(&section, "\n### %s\n\n[Schema](../../eventlog/schemas/data/%s.json). %s\n", event, event,
		strings.TrimSpace(cell(schema.Description)))
	names := jsonFields(data)
	if len(names) > 0 {
		section.WriteString("\n| field | type | always | |\n|---|---|---|---|\n")
	}
	for _, name := range names {
		field, always := schema.Properties[name], ""
		if slices.Contains(schema.Required, name) {
			always = "yes"
		}
		fmt.Fprintf(&section, "| `%s` | %s | %s | %s |\n", name, field.typeName(), always, cell(field.Description))
	}
	return strings.ReplaceAll(section.String(), ". \n", ".\n")
}

// typeName returns the type of a value in words.
func (s shownSchema) typeName() string {
	name, _ := s.Type.(string)
	if names, ok := s.Type.([]any); ok {
		name = fmt.Sprint(names[0])
	}
	switch {
	case name == "array" && s.Items != nil:
		return "list of " + s.Items.typeName()
	case name == "object" && s.AdditionalProperties != nil:
		return "map of " + s.AdditionalProperties.typeName()
	case s.Format == "date-time":
		return "time"
	}
	return cmp.Or(name, "any")
}

// jsonFields returns the names of a struct's fields in JSON, in their order.
func jsonFields(data reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(data) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && !f.Anonymous && name != "-" {
			names = append(names, cmp.Or(name, f.Name))
		}
	}
	return names
}
