package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/blobs/external/s3test"
)

// TestSubscriptionLife uses the commands of docs/subscriptions.md on a server: a paused subscription
// delivers nothing and shows what is pending, a resumed one continues without a gap, and events are
// delivered again on request. What the server reads of secrets for it is in the audit stream.
func TestSubscriptionLife(t *testing.T) {
	t.Parallel()
	v, store := &webhook{grown: make(chan struct{})}, s3test.Start(t)
	receiver := httptest.NewServer(v)
	t.Cleanup(receiver.Close)
	s := serve(t, t.TempDir(), "--worker=false", "--fetch-private", "--subscription-file-interval", "10ms")
	user := s.user()
	create := func(first, n int) {
		for i := first; i < first+n; i++ {
			user.must(http.MethodPost, "/datasets", object{"datasetId": fmt.Sprint("d", i), "dataset": object{}})
		}
	}
	received := func() (subjects []string) {
		v.mu.Lock()
		defer v.mu.Unlock()
		for _, e := range v.all {
			subjects = append(subjects, e["subject"].(string))
		}
		slices.Sort(subjects)
		return subjects
	}
	name := func(i int) string { return fmt.Sprint("accounts/default/datasets/d", i) }
	delivery := func() (state string, d struct{ PendingEvents, DeadLetters int }) {
		var item struct {
			State    string
			Delivery json.RawMessage
		}
		require.NoError(t, json.Unmarshal([]byte(s.run("subscription", "get", "hook", "-o", "json").ok(t)), &item))
		require.NoError(t, json.Unmarshal(item.Delivery, &d))
		return item.State, d
	}
	create(0, 2)
	s.run("subscription", "create", "hook", "--webhook", receiver.URL, "--type", "dataset.created.*", "--resource",
		"datasets/*", "--from", "begin").ok(t)
	eventually(t, "both events arrive", func() bool { return len(received()) == 2 })

	s.run("subscription", "pause", "hook").ok(t)
	create(2, 3)
	eventually(t, "the paused subscription shows its lag", func() bool {
		_, d := delivery()
		return d.PendingEvents == 3
	})
	state, _ := delivery()
	require.Equal(t, "PAUSED", state)
	require.Contains(t, s.run("subscription", "list").ok(t), "PAUSED")
	require.Equal(t, []string{name(0), name(1)}, received(), "a paused subscription delivers nothing")
	s.run("subscription", "resume", "hook").ok(t)
	eventually(t, "the pending events arrive", func() bool { return len(received()) == 5 })
	eventually(t, "nothing is pending", func() bool { _, d := delivery(); return d.PendingEvents == 0 })
	require.Equal(t, []string{name(0), name(1), name(2), name(3), name(4)}, received(), "without a gap or a repetition")

	var events []struct{ Subject, Position string }
	out := s.run("events", "-o", "json", "--filter", `type = "dataset.created.*"`).ok(t)
	require.NoError(t, json.Unmarshal([]byte(out), &events))
	position := ""
	for _, e := range events {
		if e.Subject == name(3) {
			position = e.Position
		}
	}
	n, err := strconv.ParseUint(position, 10, 64)
	require.NoError(t, err, "%v", events)
	s.run("subscription", "redeliver", "hook", "--from", fmt.Sprint(n)).ok(t)
	eventually(t, "the last events arrive again", func() bool { return len(received()) >= 7 })
	require.Equal(t, []string{name(0), name(1), name(2), name(3), name(3), name(4), name(4)}, received())
	require.Len(t, strings.Split(strings.TrimSpace(s.run("subscription", "dead-letters", "hook").ok(t)), "\n"), 1)

	user.must(http.MethodPost, "/secrets", object{"name": "store", "keyName": "STORE", "value": store.Credentials()})
	s.run("subscription", "create", "files", "--files", store.Address("log/"), "--credentials-secret", "store", "--from",
		"begin").ok(t)
	eventually(t, "a file is written", func() bool { return len(store.Objects()) > 0 })
	for _, purpose := range []string{"SIGN_WEBHOOK", "WRITE_SUBSCRIPTION"} {
		eventually(t, purpose+" is in the audit stream", func() bool {
			var records []object
			require.NoError(t, json.Unmarshal([]byte(s.run("audit", "-o", "json", "--filter",
				"kind = SECRET_READ AND purpose = "+purpose).ok(t)), &records))
			return len(records) > 0 && records[0]["reader"] != nil
		})
	}
	require.Zero(t, s.end())
}
