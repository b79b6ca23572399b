package audit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"anneal/eventlog/audit"
)

func newRecorder(store audit.Store, metrics prometheus.Registerer) *audit.Recorder {
	return audit.NewRecorder(audit.Options{Store: store, ID: "cp-1", Addresses: true, Now: time.Now,
		Logger: slog.New(slog.DiscardHandler), Metrics: metrics})
}

func stored(t *testing.T, store audit.Store) (all []audit.Record) {
	t.Helper()
	for r, err := range store.Read(t.Context(), "", true) {
		require.NoError(t, err)
		all = append(all, r)
	}
	return all
}

func refused(account, address string) audit.Record {
	return audit.Record{Kind: audit.RequestRefused, Account: account, ClientAddress: address, Status: 403}
}

// TestFlood checks that a client with too many records gets one a second that counts them, and that
// the records of others are complete.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &audit.Memory{}
		recorder := newRecorder(store, nil)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- recorder.Run(ctx) }()

		const seconds, perSecond = 10, 1000
		for second := range seconds {
			for i := range perSecond {
				// all of these addresses are in one /64, and so count as one client
				recorder.Record(refused("acme", fmt.Sprintf("2001:db8::%x", i)))
			}
			if second%5 == 0 {
				recorder.Record(refused("other", "192.0.2.7"))
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)

		records, events, others := 0, 0, 0
		for _, r := range stored(t, store) {
			if r.Account == "other" {
				others++
				continue
			}
			records++
			events += max(1, r.Repeated)
			require.Equal(t, "cp-1", r.ControlPlane)
			require.False(t, r.Time.IsZero())
		}
		require.Equal(t, seconds*perSecond, events, "each event is counted")
		require.LessOrEqual(t, records, 30+seconds+1)
		require.Equal(t, 2, others)
	})
}

// TestKindsAreLimitedSeparately checks that reads of secrets by one job do not replace those by
// another, nor the refused requests of the account.
func TestKindsAreLimitedSeparately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &audit.Memory{}
		recorder := newRecorder(store, nil)
		for range 1000 {
			recorder.Record(audit.Record{Kind: audit.SecretRead, Account: "acme", Reader: "accounts/acme/jobs/a"})
		}
		recorder.Record(audit.Record{Kind: audit.SecretRead, Account: "acme", Reader: "accounts/acme/jobs/b"})
		recorder.Record(refused("acme", ""))
		run(t, recorder)
		singles := map[string]int{}
		for _, r := range stored(t, store) {
			singles[r.Kind+" "+r.Reader]++
		}
		require.Equal(t, 1, singles["SECRET_READ accounts/acme/jobs/b"])
		require.Equal(t, 1, singles["REQUEST_REFUSED "])
		require.Equal(t, 31, singles["SECRET_READ accounts/acme/jobs/a"])
	})
}

// run runs a recorder until it has stored its records.
func run(t *testing.T, recorder *audit.Recorder) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	require.ErrorIs(t, recorder.Run(ctx), context.Canceled)
}

// TestRecorderDropsAndCounts checks that the recorder takes records without delay while the store
// accepts none, and states afterwards how many it has dropped.
func TestRecorderDropsAndCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, metrics := &audit.Memory{}, prometheus.NewRegistry()
		recorder := newRecorder(store, metrics)
		store.Fail(errors.New("nats: no responders available"))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- recorder.Run(ctx) }()

		const clients = 6000
		began := time.Now()
		for i := range clients {
			recorder.Record(refused("acme", fmt.Sprintf("192.0.%d.%d", i/250, i%250)))
		}
		require.Equal(t, began, time.Now(), "a request does not wait")
		synctest.Wait()
		store.Fail(nil)
		require.NoError(t, recorder.Flush(ctx))
		// this record is stored together with the one that counts the dropped records
		recorder.Record(refused("acme", "198.51.100.1"))
		require.NoError(t, recorder.Flush(ctx))
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)

		kept, dropped := 0, 0
		for _, r := range stored(t, store) {
			if r.Kind == audit.RecordsDropped {
				dropped += r.Repeated
				require.Empty(t, r.Account, "only the operator sees it")
				continue
			}
			kept += max(1, r.Repeated)
		}
		require.Positive(t, dropped)
		require.Equal(t, clients+1, kept+dropped)
		families, err := metrics.Gather()
		require.NoError(t, err)
		for _, family := range families {
			if family.GetName() == "anneal_audit_records_dropped_total" {
				require.InDelta(t, dropped, family.GetMetric()[0].GetCounter().GetValue(), 0)
			}
		}
	})
}

// TestFieldsAreBounded checks that no field of a record is long, has control characters, or has an
// API key that a client sent in the wrong place.
func TestFieldsAreBounded(t *testing.T) {
	store := &audit.Memory{}
	recorder := newRecorder(store, nil)
	key := "ank_acme_k1_" + strings.Repeat("0123456789abcdef", 4) + "01234567"
	recorder.Record(audit.Record{Kind: audit.RequestRefused,
		Path:   "/v1/" + key + "/\x1b[31m\n" + strings.Repeat("ü", 5000),
		APIKey: strings.Repeat("k", 5000) + key, Actor: "a\u202eb\tc", Method: strings.Repeat("X", 5000), Reason: "\xff"})
	run(t, recorder)
	records := stored(t, store)
	require.Len(t, records, 1)
	r := records[0]
	require.LessOrEqual(t, len(r.Path), 512)
	require.LessOrEqual(t, len(r.APIKey), 256)
	require.LessOrEqual(t, len(r.Method), 256)
	require.NotContains(t, fmt.Sprint(r), "0123456789abcdef")
	require.Equal(t, `a\u202eb\tc`, r.Actor)
	require.Contains(t, r.Path, `\u001b[31m\n`)
	require.Equal(t, "\uFFFD", r.Reason)
}

// TestAddressesCanBeOmitted checks that without Addresses no record has an address, but clients are
// still limited separately.
func TestAddressesCanBeOmitted(t *testing.T) {
	store := &audit.Memory{}
	recorder := audit.NewRecorder(audit.Options{Store: store, Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
	for i := range 100 {
		recorder.Record(refused("acme", fmt.Sprintf("192.0.2.%d", i)))
	}
	run(t, recorder)
	require.Len(t, stored(t, store), 100)
	for _, r := range stored(t, store) {
		require.Empty(t, r.ClientAddress)
	}
}
