package api

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"

	"github.com/stretchr/testify/require"

	"anneal/api/wire"
)

// wrongBodies: a body in which every field has a value of a wrong type, and
// which has a field more at every level: all are named.
func (x *examination) wrongBodies() {
	x.Helper()
	switch {
	case x.op.Form != nil:
		x.refused(http.StatusBadRequest, x.ask(func(one *scripted) { one.file, one.body = "", "no form" }))
		return
	case x.op.Body == nil:
		return
	}
	for _, broken := range []string{"{", "[]", "null", "\"text\"", "{}{}", "\xff", "{\"a\": 1, \"a\": 2}"} {
		x.refused(http.StatusBadRequest, x.ask(func(one *scripted) { one.body = broken }))
	}
	w := wrongness{anything: x.op.IsInference()}
	data, err := json.Marshal(w.object(wire.Deref(x.op.Body), ""))
	require.NoError(x, err)
	if x.op.IsInference() {
		x.server.Strict = true // others are told of unknown fields when they are answered
		defer func() { x.server.Strict = false }()
	}
	a := x.ask(func(one *scripted) { one.body = string(data) })
	x.refused(http.StatusBadRequest, a, w.faults...)
	require.Subset(x, violations(x, a), w.faults)
}

// A wrongness is a body with all that can be wrong with its types.
type wrongness struct {
	anything bool     // what takes several types takes some of them only
	faults   []string // the paths of what is wrong
}

// fault notes that what is at a path is wrong, and answers it.
func (w *wrongness) fault(path string, value any) any {
	w.faults = append(w.faults, path)
	return value
}

// object has a wrong value for each field of a wire type, and a field more.
func (w *wrongness) object(t reflect.Type, path string) map[string]any {
	out := map[string]any{"colour": w.fault(wire.Join(path, "colour"), "red")}
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

// value is a wrong value of a type; nil when there is none.
func (w *wrongness) value(t reflect.Type, path string) any {
	switch wire.KindOf(t) {
	case wire.Object:
		return w.object(t, path)
	case wire.Any:
		if !w.anything {
			return nil
		}
		if strings.HasSuffix(path, ".content") { // of parts
			w.fault(path+"[0]", nil)
			return []any{true}
		}
		return w.fault(path, []any{true})
	case wire.List:
		if element := wire.Deref(t.Elem()); wire.KindOf(element) == wire.Object {
			return []any{w.object(element, path+"[0]")}
		}
		return w.fault(path, true)
	case wire.Text:
		return w.fault(path, 5)
	case wire.Count:
		return w.fault(path, true)
	}
	return w.fault(path, "perhaps")
}
