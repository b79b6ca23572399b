package events

import (
	"encoding/json"
	"reflect"
	"slices"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/eventlog"
)

// eventSecrets selects, for each event type, the data that the API never shows: sealed values and
// hashes. eventURLs selects the signed URLs, which the API shows without their signatures. Both
// masks are derived from the Go types of the fields, so that they cover new event types.
var (
	eventSecrets = eventParts(reflect.TypeFor[domain.Sealed](), bytesType)
	eventURLs    = eventParts(reflect.TypeFor[domain.SignedURL]())
)

var bytesType = reflect.TypeFor[[]byte]()

// eventParts returns, for each event type, a mask of the fields that have one of the Go types.
func eventParts(types ...reflect.Type) map[string]wire.Mask {
	parts := map[string]wire.Mask{}
	for _, kind := range domain.Kinds {
		for name, eventType := range kind.EventTypes() {
			parts[name], _ = partsOf(eventType, types)
		}
	}
	return parts
}

// partsOf returns a mask of the fields of t that have one of the types. matches reports whether t
// itself, or the type of its elements if t is a list or a map, is one of the types.
func partsOf(t reflect.Type, types []reflect.Type) (m wire.Mask, matches bool) {
	t = wire.Deref(t)
	switch {
	case slices.Contains(types, t):
		return nil, true
	case t == bytesType:
		return nil, false
	}
	switch wire.KindOf(t) {
	case wire.List, wire.Map:
		return partsOf(t.Elem(), types)
	case wire.Object:
		m = wire.Mask{}
		for _, f := range wire.StructOf(t).Fields {
			if below, all := partsOf(f.Type, types); all || len(below) > 0 {
				m[f.Name] = below
			}
		}
	}
	return m, false
}

// addresses returns the JSON value with each signed URL that the mask selects replaced by the URL
// without its signature.
func addresses(value any, mask wire.Mask) any {
	switch v := value.(type) {
	case string:
		return domain.SignedURL(v).Address()
	case map[string]any:
		for name, below := range mask {
			if field, ok := v[name]; ok {
				v[name] = addresses(field, below)
			}
		}
	case []any:
		for i := range v {
			v[i] = addresses(v[i], mask)
		}
	}
	return value
}

// redact returns the event without secrets. If the type of the event is unknown, it removes all of
// the event's data.
func redact(e eventlog.Event) eventlog.Event {
	secret, known := eventSecrets[e.Type]
	urls := eventURLs[e.Type]
	if !known {
		e.Data = nil
	}
	if len(secret)+len(urls) == 0 || len(e.Data) == 0 {
		return e
	}
	var body any
	if json.Unmarshal(e.Data, &body) != nil {
		e.Data = nil
		return e
	}
	secret.Drop(body)
	data, err := json.Marshal(addresses(body, urls))
	if err != nil {
		data = nil
	}
	e.Data = data
	return e
}
