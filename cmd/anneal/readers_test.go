package main_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// readAll connects with credentials, and returns the subjects and positions of a stream's messages.
func readAll(t *testing.T, with contextFile, stream string) (subjects []string, positions []uint64) {
	t.Helper()
	nc, err := nats.Connect(with.NATSURL, nats.UserInfo(with.NATSUser, with.NATSPassword))
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	consumer, err := js.OrderedConsumer(t.Context(), stream, jetstream.OrderedConsumerConfig{})
	require.NoError(t, err)
	for {
		batch, err := consumer.Fetch(1000, jetstream.FetchMaxWait(time.Second))
		require.NoError(t, err)
		before := len(subjects)
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			require.NoError(t, err)
			subjects, positions = append(subjects, m.Subject()), append(positions, meta.Sequence.Stream)
		}
		if len(subjects) == before && before > 0 {
			return subjects, positions
		}
	}
}

// TestContextFileReadsItsAccountOnly checks that the NATS credentials of a context file read only
// the events of its account, at their positions in the log, and that the operator's credentials
// read all events.
func TestContextFileReadsItsAccountOnly(t *testing.T) {
	t.Parallel()
	s := serve(t, filepath.Join(t.TempDir(), "data"), "--worker=false")
	s.run("account", "create", "acme", "--data", s.dir).ok(t)
	s.user().must(http.MethodPost, "/datasets", object{"dataset": object{}, "datasetId": "mine"})

	subjects, positions := readAll(t, s.context, "EVENTS")
	for _, subject := range subjects {
		require.True(t, strings.HasPrefix(subject, "events.default."), "account default reads %s", subject)
	}
	require.Contains(t, subjects, "events.default.datasets.mine")
	listed := s.user().list("/events", "events")
	require.Len(t, positions, len(listed))
	for i, event := range listed {
		require.EqualValues(t, event["position"], jsonNumber(positions[i]))
	}

	all, _ := readAll(t, s.operator(), "EVENTS")
	require.Contains(t, all, "events.acme.accounts.acme")
	require.Greater(t, len(all), len(subjects))
}

func jsonNumber(n uint64) string { data, _ := json.Marshal(n); return string(data) }

// TestEventsCredentials checks that an admin can create readers, write a context file for them,
// list and revoke them.
func TestEventsCredentials(t *testing.T) {
	t.Parallel()
	s := serve(t, filepath.Join(t.TempDir(), "data"), "--worker=false")
	file := filepath.Join(t.TempDir(), "reader.json")
	out := s.run("events", "credentials", "create", "audit", "--expire", "24h", "--file", file).ok(t)
	require.Contains(t, out, file)
	require.NotContains(t, out, "ank_", "the key is in the file")
	info := testutil.Stat(t, file)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	var reader contextFile
	data := testutil.ReadFile(t, file)
	require.NoError(t, json.Unmarshal(data, &reader))
	require.Equal(t, "default.audit", reader.NATSUser)
	require.Equal(t, reader.APIKey, reader.NATSPassword)
	subjects, _ := readAll(t, reader, "EVENTS")
	require.Contains(t, subjects, "events.default.apiKeys.audit")
	require.Contains(t, s.run("events", "--context", file).ok(t), "model.registered.v1", "over HTTP as well")
	require.NotZero(t, s.run("dataset", "list", "--context", file).code)

	printed := s.run("events", "credentials", "create", "spare").ok(t)
	for _, part := range []string{"default.spare", "nats://", "ank_default_spare_"} {
		require.Contains(t, printed, part)
	}
	list := s.run("events", "credentials", "list").ok(t)
	require.Contains(t, list, "audit")
	require.Contains(t, list, "spare")
	require.NotContains(t, list, "admin")

	left := make(chan struct{})
	nc, err := nats.Connect(reader.NATSURL, nats.UserInfo(reader.NATSUser, reader.NATSPassword), nats.NoReconnect(),
		nats.ClosedHandler(func(*nats.Conn) { close(left) }))
	require.NoError(t, err)
	defer nc.Close()
	refused := s.run("events", "credentials", "revoke", "admin")
	require.NotZero(t, refused.code)
	require.Contains(t, refused.stderr, "anneal key delete")
	s.run("events", "credentials", "revoke", "audit").ok(t)
	select {
	case <-left:
	case <-time.After(patience):
		require.Fail(t, "a revoked reader stays connected")
	}
	_, err = nats.Connect(reader.NATSURL, nats.UserInfo(reader.NATSUser, reader.NATSPassword))
	require.ErrorIs(t, err, nats.ErrAuthorization)

	require.Zero(t, s.end())
	before := s.context
	s.start()
	require.Equal(t, before, withAddress(s.context, before.Address), "the context file keeps its credentials")
	subjects, _ = readAll(t, s.context, "EVENTS")
	require.Contains(t, subjects, "events.default.apiKeys.audit")
}

func withAddress(c contextFile, address string) contextFile { c.Address = address; return c }

// TestSharedReaderCredentialsAreReplaced checks that the credentials in a context file of an older
// version, which read the events of all accounts, are revoked and replaced.
func TestSharedReaderCredentialsAreReplaced(t *testing.T) {
	t.Parallel()
	s := serve(t, filepath.Join(t.TempDir(), "data"), "--worker=false")
	require.Zero(t, s.end())
	old := s.context
	old.NATSUser, old.NATSPassword = s.operator().NATSUser, s.operator().NATSPassword
	data := testutil.Marshal(t, old)
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "context.json"), data, 0o600))
	s.start()
	require.NotEqual(t, "reader", s.context.NATSUser)
	require.Contains(t, s.log.output(), "context.json")
	_, err := nats.Connect(old.NATSURL, nats.UserInfo(old.NATSUser, old.NATSPassword))
	require.ErrorIs(t, err, nats.ErrAuthorization)
	subjects, _ := readAll(t, s.context, "EVENTS")
	require.Contains(t, subjects, "events.default.apiKeys.admin")
	all, _ := readAll(t, s.operator(), "EVENTS")
	require.Greater(t, len(all), len(subjects))
}
