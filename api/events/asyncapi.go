package events

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"

	"anneal/api/openapi"
	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/schemas"
)

func serveSchema(c *request.Call) (any, error) {
	eventType, isJSON := strings.CutSuffix(c.PathValue("schema"), ".json")
	data, ok := schemas.Of(eventType)
	if !ok || !isJSON {
		return nil, domain.Errorf(domain.NotFound, "there is no schema %s: request the type of an event followed by "+
			".json, such as "+
			"/schemas/dataset.created.v1.json; /asyncapi.json lists all types", wire.Quote(c.PathValue("schema")))
	}
	openapi.ServePublic(c, "application/schema+json", data, openapi.ETagOf(data))
	return nil, nil
}

func serveAsyncAPI(c *request.Call) (any, error) {
	openapi.ServePublic(c, "application/json", asyncAPI(), asyncAPIETag())
	return nil, nil
}

var asyncAPIETag = sync.OnceValue(func() string { return openapi.ETagOf(asyncAPI()) })

type object = map[string]any

func ref(to string) object { return object{"$ref": "#/" + to} }

const asyncIntroduction = `Each state change of an installation is an event: a CloudEvent 1.0 in the stream EVENTS of
NATS JetStream, in binary mode. The position of an event in the log is its sequence number in the stream. The HTTP
API sends the same events in structured mode, without secrets. Within a version of an event type, the schema only
gains optional fields.`

// asyncAPI returns the AsyncAPI document as JSON. It describes the events and usage records in
// NATS, and the streams of events over HTTP.
var asyncAPI = sync.OnceValue(func() []byte {
	payloads, messages := object{"Headers": headersSchema, "CloudEvent": cloudEventSchema()}, object{}
	events := object{}
	for _, eventType := range schemas.Types() {
		messages[eventType], payloads[eventType] = message(eventType)
		if eventType != eventlog.UsageRecorded {
			events[eventType] = ref("components/messages/" + eventType)
		}
	}
	messages["CloudEvent"] = object{"name": "CloudEvent", "title": "CloudEvent in a stream of server-sent events",
		"contentType": "application/json", "payload": ref("components/schemas/CloudEvent")}
	var collections []string
	for _, kind := range domain.Kinds {
		collections = append(collections, kind.CollectionID())
	}
	slices.Sort(collections)
	account := object{"description": "ID of the account."}
	data, err := json.Marshal(object{
		"asyncapi": "3.0.0",
		"info": object{"title": "anneal events", "version": openapi.APIVersion, "description": asyncIntroduction,
			"license": object{"name": "Apache-2.0"}},
		"defaultContentType": "application/json",
		"servers": object{
			"nats": object{"host": "{host}", "protocol": "nats",
				"description": "NATS server for readers. `anneal events credentials create` shows its address and credentials.",
				"variables":   object{"host": object{"default": "127.0.0.1:4222", "description": "Host and port."}},
				"security":    []any{ref("components/securitySchemes/natsUser")}},
			"http": object{"host": "{host}", "protocol": "http", "description": "Installation that serves this document.",
				"variables": object{"host": object{"default": "127.0.0.1:8080", "description": "Host and port."}},
				"security":  []any{ref("components/securitySchemes/apiKey")}},
		},
		"channels": object{
			"events": object{"address": "events.{account}.{collection}.{id}", "title": "Events of a resource",
				"description": "Subjects of the stream EVENTS.", "servers": []any{ref("servers/nats")},
				"parameters": object{"account": account,
					"collection": object{"description": "Collection of the resource.", "enum": collections},
					"id":         object{"description": "ID of the resource; for an account, its own ID."}},
				"messages": events},
			"usage": object{"address": "usage.{account}.{kind}", "title": "Usage records of an account",
				"description": "Subjects of the stream USAGE.", "servers": []any{ref("servers/nats")},
				"parameters": object{"account": account, "kind": object{"description": "Kind of request, such as chat."}},
				"messages":   object{eventlog.UsageRecorded: ref("components/messages/" + eventlog.UsageRecorded)}},
			"stream": object{"address": "/v1/accounts/{account}/events", "title": "Events of an account over HTTP",
				"description": "Server-sent events; send Accept: text/event-stream. Last-Event-ID is the position after which " +
					"the stream begins.",
				"servers": []any{ref("servers/http")}, "parameters": object{"account": account},
				"messages": object{"CloudEvent": ref("components/messages/CloudEvent")}},
		},
		"operations": object{
			"sendEvents": object{"action": "send", "channel": ref("channels/events")},
			"sendUsage":  object{"action": "send", "channel": ref("channels/usage")},
			"sendStream": object{"action": "send", "channel": ref("channels/stream")},
		},
		"components": object{"schemas": payloads, "messages": messages,
			"securitySchemes": object{
				"natsUser": object{"type": "userPassword"},
				"apiKey":   object{"type": "http", "scheme": "bearer", "description": "API key of the account."}}},
	})
	if err != nil {
		panic(err) // impossible: TestAsyncAPI checks that the schemas are JSON
	}
	return data
})

// message returns the AsyncAPI message of an event type in NATS, and the schema of its payload.
func message(eventType string) (message, payload object) {
	data, _ := schemas.Of(eventType)
	if err := json.Unmarshal(data, &payload); err != nil {
		panic(err)
	}
	delete(payload, "$id") // AsyncAPI tools resolve references within the document
	delete(payload, "$schema")
	message = object{"name": eventType, "title": eventType, "contentType": "application/json",
		"correlationId": object{"location": "$message.header#/ce-correlation",
			"description": "ID of the request that caused the event."},
		"headers": object{"allOf": []any{ref("components/schemas/Headers"),
			object{"properties": object{"ce-type": object{"const": eventType}}}}},
		"payload": ref("components/schemas/" + eventType)}
	if text, ok := payload["description"].(string); ok {
		message["summary"] = text
	}
	return message, payload
}

func text(description string) object { return object{"type": "string", "description": description} }

// attributes has the schemas of the CloudEvents attributes that events have both in NATS and over
// HTTP.
var attributes = object{
	"specversion": object{"type": "string", "const": "1.0"},
	"id":          text("ID of the event, a UUIDv7."),
	"type":        text("Type and version of the event."),
	"source":      text("Name of the installation that recorded the event."),
	"subject":     text("Name of the resource, such as accounts/acme/datasets/d."),
	"time":        object{"type": "string", "format": "date-time"},
	"dataschema": text("URI of the JSON Schema of the data; absent in events of earlier releases. A server serves " +
		"the schema at the path of the URI."),
	"actor":        text("Name of the API key, scheduler, node or task that caused the event."),
	"command":      text("ID of the command whose result is the event."),
	"cause":        text("ID of the event to which this event is a reaction."),
	"correlation":  text("ID of the request that started the chain of events to which this event belongs."),
	"controlplane": text("ID of the control plane that recorded the event."),
	"clientaddress": text("IP address of the client whose request caused the event; absent in reactions to other " +
		"events, and if the server does not record addresses."),
	"attempt":     text("Number of the job's attempt to which the event belongs; absent in other events."),
	"state":       text("State of the resource after the event."),
	"traceparent": text("W3C trace context (traceparent) of the request that started the chain of events."),
	"tracestate":  text("W3C trace state (tracestate) of the request that started the chain of events."),
}

// required lists the attributes that every event has.
var required = []string{"specversion", "id", "type", "source", "subject", "time"}

// headersSchema is the schema of the NATS headers of an event. Their values are percent-encoded.
var headersSchema = func() object {
	properties, names := object{"content-type": object{"type": "string", "const": "application/json"}},
		[]string{"content-type"}
	for name, schema := range attributes {
		properties["ce-"+name] = schema
	}
	for _, name := range required {
		names = append(names, "ce-"+name)
	}
	return object{"type": "object", "properties": properties, "required": names}
}()

// cloudEventSchema returns the schema of an event in structured mode, in which the HTTP API sends
// it.
func cloudEventSchema() object {
	properties := maps.Clone(attributes)
	properties["datacontenttype"] = object{"type": "string", "const": "application/json"}
	properties["position"] = object{"type": "string", "pattern": wire.CountPattern,
		"description": "Position of the event in the log."}
	properties["data"] = object{"type": "object",
		"description": "Data of the event, without secrets. Its schema depends on the type of the event."}
	return object{"type": "object", "properties": properties,
		"required": append(slices.Clone(required), "datacontenttype", "position")}
}
