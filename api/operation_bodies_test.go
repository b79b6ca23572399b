package api

import (
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"anneal/api/wire"
	"anneal/internal/testutil"
)

// wrongBodies sends a body in which every field has a value of a wrong type and every object has an
// unknown field. The error must name all of these fields.
func (x *operationTest) wrongBodies() {
	x.Helper()
	switch {
	case x.op.Form != nil:
		x.rejected(http.StatusBadRequest, x.sendRow(func(one *scripted) { one.file, one.body = "", "no form" }))
		return
	case x.op.Body == nil:
		return
	}
	for _, broken := range []string{"{", "[]", "null", "\"text\"", "{}{}", "\xff", "{\"a\": 1, \"a\": 2}"} {
		x.rejected(http.StatusBadRequest, x.sendRow(func(one *scripted) { one.body = broken }))
	}
	w := wrongBody{anything: x.op.IsInference(), lists: []string{".content"}}
	if strings.HasSuffix(x.op.Path, "/responses") {
		w.lists = append(w.lists, "input")
	}
	data := testutil.Marshal(x, w.object(wire.Deref(x.op.Body), ""))
	if x.op.IsInference() {
		x.server.inference.Strict = true // without Strict, unknown fields cause only warnings
		defer func() { x.server.inference.Strict = false }()
	}
	a := x.sendRow(func(one *scripted) { one.body = string(data) })
	x.rejected(http.StatusBadRequest, a, w.paths...)
	require.Subset(x, violations(x, a), w.paths)
}

// A wrongBody builds a body with all possible type errors.
type wrongBody struct {
	anything bool     // the field accepts values of several types
	lists    []string // endings of paths of fields that accept a text or a list, whose elements are checked
	paths    []string // paths of wrong values
}

// wrong records the path of a wrong value, and returns the value.
func (w *wrongBody) wrong(path string, value any) any {
	w.paths = append(w.paths, path)
	return value
}

// object returns an object with a value of a wrong type for each field of the wire type t, and an
// unknown field.
func (w *wrongBody) object(t reflect.Type, path string) map[string]any {
	out := map[string]any{"colour": w.wrong(wire.Join(path, "colour"), "red")}
	for _, f := range wire.StructOf(t).Fields {
		if f.Output {
			continue
		}
		if value := w.value(wire.Deref(f.Type), wire.Join(path, f.Name)); value != nil {
			out[f.Name] = value
		}
	}
	return out
}

// value returns a value of a wrong type for the wire type t, or nil when every JSON value is valid.
func (w *wrongBody) value(t reflect.Type, path string) any {
	switch wire.KindOf(t) {
	case wire.Object:
		return w.object(t, path)
	case wire.Any:
		if !w.anything {
			return nil
		}
		if slices.ContainsFunc(w.lists, func(end string) bool { return strings.HasSuffix(path, end) }) {
			w.wrong(path+"[0]", nil)
			return []any{true}
		}
		return w.wrong(path, []any{true})
	case wire.List:
		if element := wire.Deref(t.Elem()); wire.KindOf(element) == wire.Object {
			return []any{w.object(element, path+"[0]")}
		}
		return w.wrong(path, true)
	case wire.Text:
		return w.wrong(path, 5)
	case wire.Count:
		return w.wrong(path, true)
	}
	return w.wrong(path, "perhaps")
}
