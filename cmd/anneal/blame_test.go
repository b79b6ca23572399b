package main_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBlame checks that one command names who changed or deleted a field, and that the operator lists
// the events of all accounts.
func TestBlame(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), "--worker=false", "--name", "first")
	admin := s.user()
	keys := map[string]string{}
	for _, id := range []string{"writer", "cleaner"} {
		made := admin.must(http.MethodPost, "/apiKeys", object{"apiKeyId": id,
			"apiKey": object{"displayName": id, "role": "user"}})
		keys[id] = made["key"].(string)
	}
	as := func(id string) caller { return s.as("default", keys[id]) }
	as("writer").must(http.MethodPost, "/datasets", object{"datasetId": "d", "dataset": object{"format": "CHAT",
		"displayName": "old"}})
	as("cleaner").must(http.MethodPatch, "/datasets/d?updateMask=displayName",
		object{"name": "accounts/default/datasets/d", "displayName": "new"})

	blame := func(args ...string) (changes []object) {
		out := s.run(append([]string{"blame", "-o", "json"}, args...)...).ok(t)
		require.NoError(t, json.Unmarshal([]byte(out), &changes))
		return changes
	}
	is := func(change object, field, key, eventType string, before, after any) {
		t.Helper()
		key = "accounts/default/apiKeys/" + key
		require.Equal(t, []any{field, key, key, "first", eventType, before, after}, []any{change["field"], change["actor"],
			change["key"], change["controlplane"], change["type"], change["old"], change["new"]})
		require.NotEmpty(t, change["position"])
		require.NotEmpty(t, change["time"])
	}
	changes := blame("datasets/d", "displayName")
	require.Len(t, changes, 2)
	is(changes[0], "displayName", "writer", "dataset.created.v1", nil, "old")
	is(changes[1], "displayName", "cleaner", "dataset.updated.v1", "old", "new")
	newest := map[any]object{}
	for _, change := range blame("accounts/default/datasets/d") {
		require.Nil(t, newest[change["field"]], "one change of each field: %v", change)
		newest[change["field"]] = change
	}
	is(newest["displayName"], "displayName", "cleaner", "dataset.updated.v1", "old", "new")
	is(newest["format"], "format", "writer", "dataset.created.v1", nil, "CHAT")

	as("cleaner").must(http.MethodDelete, "/datasets/d", nil)
	changes = blame("datasets/d")
	require.Len(t, changes, 1, "%v", changes)
	is(changes[0], "(resource)", "cleaner", "dataset.deleted.v1", "exists", nil)
	changes = blame("datasets/d", "displayName")
	require.Len(t, changes, 3)
	is(changes[2], "(resource)", "cleaner", "dataset.deleted.v1", "exists", nil)
	table := s.run("blame", "datasets/d", "displayName").ok(t)
	require.Regexp(t, `dataset\.updated\.v1 +displayName +old +new +accounts/default/apiKeys/cleaner +`+
		`accounts/default/apiKeys/cleaner +127\.0\.0\.1 +first`, table)

	for args, message := range map[string]string{
		"datasets/d colour":  `datasets/d never had the field "colour"; its fields are (resource), createdBy`,
		"datasets/none":      "accounts/default/datasets/none has no events",
		"codes":              `"codes" is not a resource: give COLLECTION/ID`,
		"colours/red":        `"colours/red" is not a resource: there is no collection "colours"; the`,
		"dataset/d":          `there is no collection "dataset": did you mean datasets? The collections are`,
		"datasets/d/x":       `"datasets/d/x" is not a resource: give COLLECTION/ID`,
		`datasets/"OR"a"="a`: "is not a resource",
	} {
		refused := s.run(append([]string{"blame"}, strings.Fields(args)...)...)
		require.NotZero(t, refused.code, args)
		require.Contains(t, refused.stderr, message)
	}

	require.Contains(t, s.run("events", "--all-accounts").stderr, "operator")
	all := s.run("events", "--all-accounts", "--context", s.dir+"/operator.json", "--filter",
		`actor = "*cleaner" OR subject = "accounts/system/*"`).ok(t)
	require.Contains(t, all, "accounts/system/")
	require.Contains(t, all, "accounts/default/datasets/d")
	require.NotContains(t, all, "accounts/default/apiKeys/writer ")
	require.Contains(t, s.run("events", "--all-accounts", "--resource", "datasets/d").stderr, "exclude each other")
}
