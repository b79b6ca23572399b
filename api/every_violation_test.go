package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/internal/testutil"
)

// TestEveryViolationIsListed checks for each management operation that one response lists all
// violations of a request: an unknown parameter, parameters of a wrong type, and a value beyond a
// limit for every field of the body that has a limit in the document.
func TestEveryViolationIsListed(t *testing.T) {
	s := newHarness(t, request.Limits{})
	data, _ := s.server.document.Bytes()
	var doc map[string]any
	require.NoError(t, json.Unmarshal(data, &doc))
	table := map[string]*request.Operation{}
	for i, op := range s.server.table {
		table[op.ID] = &s.server.table[i]
	}
	for _, r := range operationRows() {
		op := table[r.id]
		if op.Gate == request.Everyone || op.IsInference() {
			continue
		}
		t.Run(r.id, func(t *testing.T) {
			x := &operationTest{harness: newHarness(t, request.Limits{}), op: op, valid: parseRequest(r.request)}
			if r.prepare != nil {
				r.prepare(x.harness)
			}
			x.set(r.scene)
			query, fields := wrongQuery(op)
			a := x.sendRow(query)
			require.Subset(t, violations(x, a), fields, "%s", a.body)
			if op.Body == nil {
				return
			}
			typed := slices.DeleteFunc(slices.Clone(fields), func(name string) bool { // masks and IDs need the body
				return strings.HasSuffix(name, "Mask") || strings.HasSuffix(name, "Id")
			})
			a = x.sendRow(func(one *scripted) { query(one); one.body = "{" })
			require.Subset(t, violations(x, a), append(typed, "body"), "%s", a.body)
			schema, ok := at(doc, "paths", op.Path, strings.ToLower(op.Method), "requestBody", "content", "application/json",
				"schema").(map[string]any)
			if !ok {
				return // the body has no fields
			}
			body, wrong := wrongFields(t, doc, schema, x.valid.body)
			a = x.sendRow(func(one *scripted) { query(one); one.body = body })
			require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
			for _, field := range violations(x, a) {
				fields = append(fields, strings.ReplaceAll(field, "[0]", ""))
			}
			for _, field := range wrong {
				require.Contains(t, fields, field, "%s", a.body)
			}
		})
	}
}

// wrongQuery returns an edit that adds an unknown query parameter and sets each parameter that has
// a type to a value that is not of this type. It also returns the names of these parameters.
func wrongQuery(op *request.Operation) (edit func(*scripted), fields []string) {
	edits := []func(*scripted){with("shade", "dark")}
	fields = []string{"shade"}
	for _, p := range op.Query {
		switch {
		case p.Kind == wire.Bool || p.Kind == wire.Int, strings.HasSuffix(p.Name, "Mask"):
			edits, fields = append(edits, with(p.Name, "colour")), append(fields, p.Name)
		case strings.HasSuffix(p.Name, "Id"):
			edits, fields = append(edits, with(p.Name, "Not An ID")), append(fields, p.Name)
		}
	}
	return func(one *scripted) {
		for _, edit := range edits {
			edit(one)
		}
	}, fields
}

// wrongFields returns the body with a value beyond a limit for every field that has one, and the
// paths of these fields.
func wrongFields(t *testing.T, doc, schema map[string]any, body string) (wrong string, fields []string) {
	var tree any
	if body != "" {
		require.NoError(t, json.Unmarshal([]byte(body), &tree))
	}
	seen := map[string]bool{}
	eachLimit(doc, schema, nil, func(path []string, value any) {
		name := strings.ReplaceAll(strings.Join(path, "."), ".[0]", "")
		if seen[name] {
			return
		}
		seen[name], fields = true, append(fields, name)
		tree = put(tree, path, value)
	})
	data := testutil.Marshal(t, tree)
	return string(data), fields
}

// TestViolationsOfOneFieldAreListed checks that different rules that one field breaks are listed
// together, also when a check of the request and a check of the resource find them.
func TestViolationsOfOneFieldAreListed(t *testing.T) {
	s := newHarness(t, request.Limits{})
	const path = acme + "/supervisedFineTuningJobs"
	a := s.call("POST", path, "user", `{"dataset": "accounts/acme/datasets/none",
		"baseModel": "accounts/default/models/anneal-base", "warmStartFrom": "accounts/acme/models/none"}`)
	require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
	var message []domain.Violation
	details := a.json(t)["details"].([]any)
	data := testutil.Marshal(t, details[1].(map[string]any)["fieldViolations"])
	require.NoError(t, json.Unmarshal(data, &message))
	var texts []string
	for _, v := range message {
		texts = append(texts, v.Field+": "+v.Description)
	}
	require.Len(t, texts, 3, "%s", a.body)
	require.Contains(t, texts[0], "dataset: accounts/acme/datasets/none is not a dataset of accounts/acme")
	require.Contains(t, texts[1], "warmStartFrom: accounts/acme/models/none is not a model that accounts/acme may use")
	require.Equal(t, "warmStartFrom: give either baseModel or warmStartFrom, not both", texts[2])
}
