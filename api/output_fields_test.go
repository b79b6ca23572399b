package api

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/internal/testutil"
)

// outputPaths returns the paths of the output-only fields of t, without those of lists and maps.
func outputPaths(t reflect.Type) (paths [][]string) {
	s := wire.StructOf(wire.Deref(t))
	for _, f := range s.Fields {
		switch {
		case f.Output:
			paths = append(paths, []string{f.Name})
		case wire.KindOf(wire.Deref(f.Type)) == wire.Object:
			for _, inner := range outputPaths(f.Type) {
				paths = append(paths, append([]string{f.Name}, inner...))
			}
		}
	}
	return paths
}

// TestOutputOnlyFieldsAreWarnedOf checks for each create and update of a resource that a request
// which sets an output-only field gets a warning that names the field, and that the fields of a
// resource that a client has read and sends back cause no warning.
func TestOutputOnlyFieldsAreWarnedOf(t *testing.T) {
	table := map[string]*request.Operation{}
	all := (&Server{}).operations()
	for i := range all {
		table[all[i].ID] = &all[i]
	}
	tested := 0
	for _, r := range operationRows() {
		op := table[r.id]
		creates, updates := strings.HasPrefix(r.id, "create"), strings.HasPrefix(r.id, "update")
		if op.Gate == request.Everyone || op.IsInference() || op.Body == nil || !creates && !updates {
			continue
		}
		paths := outputPaths(op.Body)
		if len(paths) == 0 {
			continue
		}
		tested++
		t.Run(r.id, func(t *testing.T) {
			s := newHarness(t, request.Limits{})
			if r.prepare != nil {
				r.prepare(s)
			}
			s.set(r.scene)
			x := &operationTest{harness: s, op: op, valid: parseRequest(r.request)}
			if updates {
				path, _, _ := strings.Cut(x.valid.path, "?")
				one := parseRequest("GET " + path + " admin\n")
				var tree map[string]any
				require.NoError(t, json.Unmarshal(x.send(one.on(s)).body, &tree))
				x.valid.body = merge(t, tree, x.valid.body)
				a := x.sendRow(nil)
				require.Equal(t, http.StatusOK, a.status, "%s", a.body)
				require.NotContains(t, strings.Join(a.header.Values("anneal-warning"), "\n"), "only the server sets it")
			}
			var tree any
			require.NoError(t, json.Unmarshal([]byte(x.valid.body), &tree))
			var want []string
			for _, path := range paths {
				name := strings.Join(path, ".")
				if updates && name == "name" {
					continue // must be the name in the path
				}
				tree = put(tree, path, "given")
				if wrapped := path[0]; creates && len(path) > 1 && strings.EqualFold(wrapped+"Id", wrapperID(op)) {
					name = strings.Join(path[1:], ".")
				}
				want = append(want, name+": accepted, but has no effect: only the server sets it")
			}
			data := testutil.Marshal(t, tree)
			x.valid.body = string(data)
			// not with send, which requires that the values have the types of the document
			response, err := http.DefaultClient.Do(x.valid.on(s))
			require.NoError(t, err)
			defer response.Body.Close()
			body := testutil.ReadAll(t, response.Body)
			require.Equal(t, http.StatusOK, response.StatusCode, "%s", body)
			require.Subset(t, response.Header.Values("anneal-warning"), want)
		})
	}
	require.Greater(t, tested, 20)
}

// wrapperID returns the name of the field of the operation's body that holds the ID of the resource.
func wrapperID(op *request.Operation) string {
	for _, f := range wire.StructOf(wire.Deref(op.Body)).Fields {
		if strings.HasSuffix(f.Name, "Id") && f.Name != "sourceDatasetId" {
			return f.Name
		}
	}
	return ""
}

// merge returns the JSON text of tree with the fields of the object in body.
func merge(t *testing.T, tree map[string]any, body string) string {
	var fields map[string]any
	require.NoError(t, json.Unmarshal([]byte(body), &fields))
	for name, value := range fields {
		tree[name] = value
	}
	data := testutil.Marshal(t, tree)
	return string(data)
}
