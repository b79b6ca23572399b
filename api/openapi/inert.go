package openapi

import (
	"reflect"
	"strings"

	"anneal/api/inert"
	"anneal/api/request"
	"anneal/api/wire"
)

// inertTexts returns the texts about the fields without effect of the operations' bodies, by
// component and field, such as Deployment.autoTune.
func inertTexts(table []request.Operation) map[string]string {
	texts := map[string]string{}
	for i := range table {
		for _, f := range InertFields(&table[i]) {
			if owner, field := ownerOf(f.root, strings.Split(f.Path, ".")); owner != nil {
				key := ComponentName(owner) + "." + field
				if !strings.Contains(texts[key], f.Text()) {
					texts[key] = join(texts[key], f.Text())
				}
			}
		}
	}
	return texts
}

// An InertField is a field without effect of an operation.
type InertField struct {
	inert.Field
	root reflect.Type // type that the path begins in; nil for a parameter of the query
}

// Owner returns the struct type that has the field, and the field's name in it. It returns nil for
// a parameter of the query, and when the body has no such field.
func (f InertField) Owner() (owner reflect.Type, field string) {
	return ownerOf(f.root, strings.Split(f.Path, "."))
}

// InertFields returns the fields of the operation's requests that have no effect.
func InertFields(op *request.Operation) (fields []InertField) {
	body := op.Body
	if op.Form != nil {
		body = op.Form
	}
	for _, f := range inert.Of(op.ID) {
		if f.Parameter() != "" {
			fields = append(fields, InertField{f, nil})
		} else {
			fields = append(fields, InertField{f, body})
		}
	}
	if changes := strings.HasPrefix(op.ID, "create") || strings.HasPrefix(op.ID, "update"); !changes ||
		op.Response == nil {
		return fields
	}
	if op.Body != op.Response && !strings.HasPrefix(op.ID, "create") { // a sub-resource, such as a version
		return fields
	}
	for _, f := range inert.Of(op.Tag) { // the response of a create or update is the resource
		fields = append(fields, InertField{f, op.Response})
	}
	return fields
}

func ownerOf(t reflect.Type, path []string) (owner reflect.Type, field string) {
	if t == nil {
		return nil, ""
	}
	for i, name := range path {
		t = wire.Deref(t)
		for wire.KindOf(t) == wire.List || wire.KindOf(t) == wire.Map {
			t = wire.Deref(t.Elem())
		}
		if wire.KindOf(t) != wire.Object {
			return nil, ""
		}
		f, known := wire.StructOf(t).Field(name)
		switch {
		case !known:
			return nil, ""
		case i == len(path)-1:
			return t, f.Name
		}
		t = f.Type
	}
	return nil, ""
}

// inertParameter returns the text about a parameter of the operation that has no effect, or "".
func inertParameter(op *request.Operation, name string) (text string) {
	for _, f := range InertFields(op) {
		if f.Parameter() == name {
			text = join(text, f.Text())
		}
	}
	return text
}

// join joins sentences.
func join(sentences ...string) string { return strings.TrimSpace(strings.Join(sentences, " ")) }
