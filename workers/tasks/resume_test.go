package tasks_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/workers/tasks"
)

// TestPendingTasksAreResumed checks that pending work is resumed when a server starts, although no
// consumer delivers the event again.
func TestPendingTasksAreResumed(t *testing.T) {
	b := newHarness(t)
	const directory = "datasets/acme/d/1/"
	b.do("d", domain.CreateDataset{})
	b.put(directory+"data.jsonl", strings.NewReader(row+row+row))
	b.do("d", domain.UploadDataset{Upload: 1, Files: domain.Files{Prefix: directory,
		Sizes: map[string]int64{"data.jsonl": int64(3 * len(row))}}})
	task := tasks.Validator{Log: b.log, World: b.world, Blobs: b.blobs, Now: time.Now}.Task()
	acknowledged := uint64(0)
	r := tasks.Resumption{Log: b.log, Logger: slog.New(slog.DiscardHandler),
		Acknowledged: func(_ context.Context, handler string) (uint64, error) {
			require.Equal(t, "dataset-validation", handler)
			return acknowledged, nil
		}}
	r.View = b.world.View()
	require.NoError(t, r.Run(t.Context(), task))
	// The work is not resumed, because the consumer will deliver the event.
	until(b, domain.Datasets, "d", func(d domain.Dataset) bool { return d.Upload == 1 && d.Validated == 0 })
	acknowledged = 2
	for range 2 { // the second run finds no pending work
		r.View = b.world.View()
		require.NoError(t, r.Run(t.Context(), task))
		d := until(b, domain.Datasets, "d", func(d domain.Dataset) bool { return d.Validated == 1 })
		require.Equal(t, domain.DatasetReady, d.State)
	}
}
