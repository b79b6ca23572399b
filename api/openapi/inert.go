package openapi

import (
	"reflect"
	"strings"

	"anneal/api/inert"
	"anneal/api/request"
	"anneal/api/wire"
)

// inertTexts returns the sentences about fields without effect in the bodies of the operations, by
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

// An InertField is a field of an operation's requests that has no effect: see inert.Field.
type InertField struct {
	inert.Field
	root reflect.Type // type of the body or resource in which Path begins; nil for a query parameter
}

// Owner returns the struct type that has the field, and the field's name in it. owner is nil for a
// query parameter, and if the body has no such field.
func (f InertField) Owner() (owner reflect.Type, field string) {
	return ownerOf(f.root, strings.Split(f.Path, "."))
}

// InertFields returns the fields without effect of an operation's requests.
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
	// the operation has a sub-resource, such as a version
	if op.Body != op.Response && !strings.HasPrefix(op.ID, "create") {
		return fields
	}
	for _, f := range inert.Of(op.Tag) { // the request body is the resource, which the response contains too
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

// inertParameter returns a sentence about a query parameter of the operation that has no effect; ""
// if it has an effect.
func inertParameter(op *request.Operation, name string) (text string) {
	for _, f := range InertFields(op) {
		if f.Parameter() == name {
			text = join(text, f.Text())
		}
	}
	return text
}

// join joins sentences with spaces.
func join(sentences ...string) string { return strings.TrimSpace(strings.Join(sentences, " ")) }
