package api

import (
	"encoding/json"
	"net/http"
	"reflect"

	"github.com/stretchr/testify/require"
)

// wrongBodies: a body in which every field has a value of a wrong type, and
// which has a field more at every level: all are named.
func (x *examination) wrongBodies() {
	x.Helper()
	switch {
	case x.op.form != nil:
		x.refused(http.StatusBadRequest, x.ask(func(one *scripted) { one.file, one.body = "", "no form" }))
		return
	case x.op.body == nil:
		return
	}
	for _, broken := range []string{"{", "[]", "null", "\"text\"", "{}{}", "\xff", "{\"a\": 1, \"a\": 2}"} {
		x.refused(http.StatusBadRequest, x.ask(func(one *scripted) { one.body = broken }))
	}
	if x.op.inference() {
		return // these have a decoder of their own: see their transcripts
	}
	var faults []string
	tree := wrong(plain(x.op.body), "", &faults)
	data, err := json.Marshal(tree)
	require.NoError(x, err)
	a := x.ask(func(one *scripted) { one.body = string(data) })
	x.refused(http.StatusBadRequest, a, faults...)
	require.Subset(x, violations(x, a), faults)
}

// wrong is an object for a wire type with all that can be wrong with its types,
// and the paths of what is.
func wrong(t reflect.Type, path string, faults *[]string) map[string]any {
	out := map[string]any{"colour": "red"}
	*faults = append(*faults, join(path, "colour"))
	for _, f := range shapeOf(t).fields {
		if f.output {
			continue
		}
		at, ft := join(path, f.name), plain(f.typ)
		switch sortOf(ft) {
		case objectValue:
			out[f.name] = wrong(ft, at, faults)
			continue
		case anyValue:
			continue
		case textValue:
			out[f.name] = 5
		case countValue, listValue:
			out[f.name] = true
		default:
			out[f.name] = "perhaps"
		}
		*faults = append(*faults, at)
	}
	return out
}
