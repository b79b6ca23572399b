package tasks_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/pubsub"
	"anneal/workers/tasks"
)

const row = `{"prompt":"a","completion":"b"}` + "\n"

// stumbling is a log that refuses to append the event that records that an upload could not be
// validated. fails is the number of further refusals.
type stumbling struct {
	eventlog.Log
	fails int
}

func (s *stumbling) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	if s.fails > 0 && strings.Contains(string(w.Data), "could not be validated") {
		s.fails--
		return 0, errors.New("the log is unavailable")
	}
	return s.Log.Append(ctx, w)
}

// TestUploadsAreValidated checks, on the router of an embedded server, that a valid upload is
// accepted, an invalid upload is rejected, and an upload whose file is missing fails.
func TestUploadsAreValidated(t *testing.T) {
	b := routedHarness(t, func(b *harness, r *pubsub.Router) error {
		return tasks.Validator{Log: &stumbling{Log: b.log, fails: 1}, World: b.world, Blobs: b.blobs, Now: time.Now,
			Count: func(text string) int { return 7 * len(text) }}.Handle(r)
	})
	upload := func(id, content string) domain.Dataset {
		directory := "datasets/acme/" + id + "/1/"
		b.do(id, domain.CreateDataset{})
		if content != "" {
			b.put(directory+"data.jsonl", strings.NewReader(content))
		}
		b.do(id, domain.UploadDataset{Upload: 1, Files: domain.Files{Prefix: directory,
			Sizes: map[string]int64{"data.jsonl": int64(len(content))}}})
		return until(b, domain.Datasets, id, func(d domain.Dataset) bool { return d.Validated == 1 })
	}
	good := upload("good", row+row+row)
	require.Equal(t, domain.DatasetReady, good.State)
	require.Equal(t, domain.FormatCompletion, good.Format)
	require.EqualValues(t, 3, good.ExampleCount)
	require.EqualValues(t, 3*7*len("pc"), good.EstimatedTokenCount, "counted by the tokenizer, not estimated from bytes")

	bad := upload("bad", row+"{\n"+row)
	require.Equal(t, domain.DatasetUploading, bad.State)
	require.Contains(t, bad.Status.Message, "data.jsonl:2:")

	lost := upload("lost", "")
	require.Equal(t, domain.DatasetUploading, lost.State)
	require.Equal(t, "INTERNAL", lost.Status.Code)
}
