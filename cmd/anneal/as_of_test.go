package main_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestEarlierStates checks --as-of, diff and why against a server, also after it has started again.
func TestEarlierStates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, dir, "--worker=false")
	made := s.user().must(http.MethodPost, "/apiKeys", object{"apiKeyId": "writer",
		"apiKey": object{"displayName": "writer", "role": "user"}})
	writer := s.as("default", made["key"].(string))
	dataset := func(id, name string) {
		writer.must(http.MethodPost, "/datasets", object{"datasetId": id, "dataset": object{"format": "CHAT",
			"displayName": name}})
	}
	run := func(out any, args ...string) {
		t.Helper()
		require.NoError(t, json.Unmarshal([]byte(s.run(append(args, "-o", "json")...).ok(t)), out))
	}
	dataset("kept", "first")
	dataset("doomed", "first")
	var events []object
	run(&events, "events", "--resource", "datasets/doomed")
	a := events[len(events)-1]["position"].(string)
	var account object
	run(&account, "account", "get")
	writer.must(http.MethodPatch, "/datasets/kept?updateMask=displayName",
		object{"name": "accounts/default/datasets/kept", "displayName": "second"})
	writer.must(http.MethodDelete, "/datasets/doomed", nil)
	dataset("later", "third")
	between := time.Now().UTC().Format(time.RFC3339Nano)
	run(&events, "events", "--resource", "datasets/later")
	b := events[0]["position"].(string)

	check := func() {
		var item object
		run(&item, "dataset", "get", "kept", "--as-of", a)
		require.Equal(t, "first", item["displayName"])
		run(&item, "dataset", "get", "kept", "--as-of", between)
		require.Equal(t, "second", item["displayName"])
		var items []object
		run(&items, "dataset", "list", "--as-of", a, "--order-by", "name")
		require.Len(t, items, 2)
		require.Equal(t, "accounts/default/datasets/doomed", items[0]["name"])
		run(&items, "dataset", "list", "--as-of", a, "--filter", `displayName = "second"`)
		require.Empty(t, items)
		gone := s.run("dataset", "get", "doomed", "--as-of", b)
		require.NotZero(t, gone.code)
		require.Contains(t, gone.stderr, "at position "+b+" of the log, there is no dataset named")

		run(&items, "diff", "datasets/kept", a, b)
		fields := map[any]object{}
		for _, item := range items {
			fields[item["field"]] = item
		}
		require.Equal(t, []any{"first", "second"}, []any{fields["displayName"]["old"], fields["displayName"]["new"]})
		require.NotContains(t, fields, "format")
		run(&items, "diff", "accounts/default", a, between)
		changes := map[any]any{}
		for _, item := range items {
			changes[item["resource"]] = item["change"]
		}
		require.Equal(t, map[any]any{"accounts/default/datasets/kept": "changed",
			"accounts/default/datasets/doomed": "deleted", "accounts/default/datasets/later": "created"}, changes)
		all := s.run("diff", "--all-accounts", a, b, "--context", s.dir+"/operator.json").ok(t)
		require.Regexp(t, `deleted +accounts/default/datasets/doomed`, all)
		require.Regexp(t, `changed +accounts/default/datasets/kept +.*displayName`, all)
		table := s.run("diff", "datasets/doomed", a, b).ok(t)
		require.Regexp(t, `^FIELD +OLD +NEW\n\(resource\) +exists`, table)

		run(&items, "why", "datasets/doomed")
		last := items[len(items)-1]
		require.Equal(t, "dataset.deleted.v1", last["type"])
		require.Equal(t, "accounts/default/apiKeys/writer", items[0]["actor"])
		require.NotEmpty(t, items[0]["correlation"])
		run(&items, "why", "datasets/kept", a)
		require.Equal(t, "dataset.created.v1", items[len(items)-1]["type"])
	}
	check()
	s.kill()
	s.start()
	check()

	end, err := strconv.Atoi(b)
	require.NoError(t, err)
	for args, says := range map[string]string{
		"dataset get kept --as-of soon":               `not "soon"`,
		"dataset list --as-of " + strconv.Itoa(end*9): "the position of the last event of the log",
		"diff datasets/kept 1":                        "give a resource or --all-accounts, and two positions or times",
		"diff datasets/none 5 6":                      "exists neither at position 5 nor at position 6",
		"diff colours/red 5 6":                        `"colours/red" is not a resource`,
		"why datasets/none":                           "has no events",
		"why datasets/kept none":                      `position "none" must be a whole number`,
	} {
		refused := s.run(strings.Fields(args)...)
		require.NotZero(t, refused.code, args)
		require.Contains(t, refused.stderr, says)
	}
}
