package subscriptions

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs/delivery"
	"anneal/blobs/external/s3test"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/secrets"
)

// TestFileOfAnotherControlPlane checks that a runner that has read events, and finds that another control
// plane has recorded a shorter file, continues after that file.
func TestFileOfAnotherControlPlane(t *testing.T) {
	b, store := newHarness(t), s3test.Start(t)
	b.subscribe(b.toFiles(store))
	for n := range 7 {
		b.record(fmt.Sprint("d", n), 0)
	}
	r := &Runner{Log: b.log, World: b.world, Blobs: b.blobs, Open: secrets.ObservedVault{Vault: b.vault}.Open,
		Webhook: b.client, Store: b.client, Visible: visible, Now: time.Now, Logger: slog.New(slog.DiscardHandler),
		Policy: b.policy}
	r.slots = newSlots(2)
	tail := eventlog.NewTail(r.Log, r.Logger)
	defer tail.Close()
	tail.Start(0)
	row, _ := b.world.View().Subscriptions.Get(subscriptionName)
	begin := func() *files {
		return newFiles(&session{Runner: r, tail: tail, name: row.Name, event: row.CreateEvent, start: startOf(row)})
	}
	one, two := begin(), begin()
	defer one.stopReading()
	defer two.stopReading()
	// one has read 7 events and not recorded them
	s := row.State
	one.begin(&s, delivery.Cursor{})
	for one.file.Events < 7 {
		_, err := one.read(t.Context())
		require.NoError(t, err)
	}
	// two has read the first four, and recorded and written them
	two.begin(&s, delivery.Cursor{})
	p := *r
	p.Policy.FileEvents = 4
	two.session.Runner = &p
	for b.subscription().File == nil {
		s := b.subscription()
		require.NoError(t, two.step(t.Context(), &s))
	}
	require.Equal(t, int64(4), int64(b.subscription().File.Events))
	require.NoError(t, one.record(t.Context(), domain.RecordEventFile{EventFile: one.file, After: 0}))
	for range 3 {
		s := b.subscription()
		require.NoError(t, one.step(t.Context(), &s))
	}
	for n := range 10 {
		b.record(fmt.Sprint("e", n), 0)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	runs.Go(func() { _ = one.run(ctx) }) // it ends with ctx
	b.requireFiles(store)
	cancel()
	runs.Wait()
}

// TestFilesOfTwoControlPlanes checks the files of two control planes that run at the same time and make
// files of different lengths.
func TestFilesOfTwoControlPlanes(t *testing.T) {
	b, store := newHarness(t), s3test.Start(t)
	b.policy.FileEvents, b.policy.FileInterval = 100, 3*time.Millisecond
	b.subscribe(b.toFiles(store))
	b.start()
	b.policy.FileInterval = 5 * time.Millisecond
	b.start()
	for n := range 600 {
		b.record(fmt.Sprint("e", n%4), n/4)
	}
	b.requireFiles(store)
}
