package audit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"anneal/eventlog/audit"
	"anneal/eventlog/servertest"
)

// TestStreamIsBoundedByAccount checks that an account cannot replace the records of others, and
// that a reader of one account gets only its own.
func TestStreamIsBoundedByAccount(t *testing.T) {
	s := servertest.Start(t)
	store, err := audit.OpenStream(s.Control(), nil)
	require.NoError(t, err)
	record := func(account string, n int) audit.Record {
		return audit.Record{ID: uuid.NewString(), Kind: audit.RequestRefused, Account: account, Time: time.Now().UTC(),
			Path: fmt.Sprintf("/%d", n)}
	}
	first := []audit.Record{record("other", 1), record("", 2)}
	require.NoError(t, store.Append(t.Context(), first))
	require.NoError(t, store.Append(t.Context(), first), "records that are stored again are dropped")
	var flood []audit.Record
	for n := range audit.MaxPerAccount + 100 {
		if flood = append(flood, record("acme", n)); len(flood) == 256 {
			require.NoError(t, store.Append(t.Context(), flood))
			flood = nil
		}
	}
	require.NoError(t, store.Append(t.Context(), flood))
	count := func(account string, all bool) (n int, last string) {
		for r, err := range store.Read(t.Context(), account, all) {
			require.NoError(t, err)
			require.True(t, all || r.Account == account)
			n, last = n+1, r.Path
		}
		return n, last
	}
	n, last := count("acme", false)
	require.Equal(t, audit.MaxPerAccount, n)
	require.Equal(t, fmt.Sprintf("/%d", audit.MaxPerAccount+99), last, "the newest are kept")
	n, _ = count("other", false)
	require.Equal(t, 1, n)
	n, _ = count("nobody", false)
	require.Zero(t, n)
	n, _ = count("", true)
	require.Equal(t, audit.MaxPerAccount+2, n, "the operator sees unauthenticated callers too")

	stream, err := servertest.JetStream(t, s.Control()).Stream(t.Context(), audit.Stream)
	require.NoError(t, err)
	config := stream.CachedInfo().Config
	require.EqualValues(t, audit.MaxBytes, config.MaxBytes)
	require.Equal(t, audit.MaxAge, config.MaxAge)
	require.NotContains(t, strings.Join(config.Subjects, " "), "events.", "it is not part of the log")
}

// TestDamagedRecords checks that a reader gets an error in place of each damaged record, and all
// others.
func TestDamagedRecords(t *testing.T) {
	s := servertest.Start(t)
	store, err := audit.OpenStream(s.Control(), nil)
	require.NoError(t, err)
	js := servertest.JetStream(t, s.Control())
	for n := range 3 {
		_, err := js.Publish(t.Context(), "audit.acme", []byte("{damaged"))
		require.NoError(t, err)
		require.NoError(t, store.Append(t.Context(), []audit.Record{{ID: uuid.NewString(), Kind: audit.RequestRefused,
			Account: "acme", Path: fmt.Sprintf("/%d", n)}}))
	}
	_, err = js.Publish(t.Context(), "audit.acme", []byte("{damaged"))
	require.NoError(t, err)
	var got []string
	for record, err := range store.Read(t.Context(), "acme", false) {
		var damaged audit.DamagedError
		if errors.As(err, &damaged) {
			got = append(got, fmt.Sprint(damaged.Position))
			continue
		}
		require.NoError(t, err)
		got = append(got, record.Path)
	}
	require.Equal(t, []string{"1", "/0", "3", "/1", "5", "/2", "7"}, got)
}

// TestStreamIsGone checks that a store without its stream returns an error in time.
func TestStreamIsGone(t *testing.T) {
	s := servertest.Start(t)
	store, err := audit.OpenStream(s.Control(), nil)
	require.NoError(t, err)
	require.NoError(t, servertest.JetStream(t, s.Control()).DeleteStream(t.Context(), audit.Stream))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.Error(t, store.Append(ctx, []audit.Record{{ID: "1", Kind: audit.RequestRefused}}))
	for _, err := range store.Read(ctx, "", true) {
		require.Error(t, err)
	}
	require.NoError(t, ctx.Err())
}

// TestLongestRecordIsStored checks that the stream accepts a record whose fields are all as long,
// and as expensive to encode, as a client can make them: a record that the stream refuses would be
// sent again forever, and keep back all others.
func TestLongestRecordIsStored(t *testing.T) {
	s := servertest.Start(t)
	store, err := audit.OpenStream(s.Control(), nil)
	require.NoError(t, err)
	for _, text := range []string{"<", "&", `"`, `\`, "\u2028", "\x00", "ü"} {
		long := strings.Repeat(text, 4000)
		recorder := newRecorder(store, nil)
		recorder.Record(audit.Record{Kind: audit.RequestRefused, Actor: long, APIKey: long, ClientAddress: long,
			Method: long, Operation: long, Path: long, Status: 403, Reason: long, RequestID: long, TraceParent: long,
			Secret: long, Reader: long, Purpose: long, Node: long})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		ended := make(chan error, 1)
		go func() { ended <- recorder.Run(ctx) }()
		require.NoError(t, recorder.Flush(ctx), "%q", text)
		cancel()
		<-ended
	}
	require.Len(t, stored(t, store), 7)
}
