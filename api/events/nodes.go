package events

import (
	"bytes"
	"encoding/json"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/audit"
)

// masked returns the event with attributes that do not name nodes if the caller may not see their
// names. Filters use it too: otherwise, a filter could find out the names.
func (h history) masked(e eventlog.Event) eventlog.Event {
	if h.mask != nil {
		e.Actor = h.mask.Text(e.Actor)
	}
	return e
}

// shown returns the event as the caller receives it: without secrets and, unless the caller is of
// the operator's account, without names of nodes.
func (h history) shown(e eventlog.Event) eventlog.Event {
	e = h.masked(redact(e))
	if h.mask == nil || !bytes.Contains(e.Data, []byte("node")) {
		return e
	}
	var body any
	decoder := json.NewDecoder(bytes.NewReader(e.Data))
	decoder.UseNumber()
	if err := decoder.Decode(&body); err != nil {
		e.Data = nil
		return e
	}
	hidden, changed := h.hideNodes("", body)
	if !changed {
		return e
	}
	data, err := json.Marshal(hidden)
	if err != nil {
		data = nil
	}
	e.Data = data
	return e
}

// hideNodes returns a JSON value without names of nodes, and whether it has changed. field is the
// name of the field that has the value.
func (h history) hideNodes(field string, value any) (hidden any, changed bool) {
	switch v := value.(type) {
	case string:
		text := v
		if field == "reason" || field == "message" {
			text = domain.HideNodes(text)
		}
		text = h.mask.Text(text)
		return text, text != v
	case map[string]any:
		for name, one := range v {
			shown, different := h.hideNodes(name, one)
			v[name], changed = shown, changed || different
		}
	case []any:
		for i, one := range v {
			shown, different := h.hideNodes(field, one)
			v[i], changed = shown, changed || different
		}
	}
	return value, changed
}

// hideNode removes the name of the node from an audit record, unless mask is nil.
func hideNode(r *audit.Record, mask *domain.NodeMask) {
	if mask == nil {
		return
	}
	r.Actor = mask.Text(r.Actor)
	if r.Node != "" {
		r.Node = mask.Label(r.Node)
	}
}
