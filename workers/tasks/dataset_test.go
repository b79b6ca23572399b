package tasks_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/workers/tasks"
)

const row = `{"prompt":"a","completion":"b"}` + "\n"

// stumbling fails to record the verdict that the check itself failed, a number
// of times.
type stumbling struct {
	eventlog.Log
	fails int
}

func (s *stumbling) Append(ctx context.Context, writes ...eventlog.Write) (uint64, error) {
	if s.fails > 0 && strings.Contains(string(writes[0].Data), "could not be checked") {
		s.fails--
		return 0, errors.New("the log is away")
	}
	return s.Log.Append(ctx, writes...)
}

// TestUploadsAreJudged uploads into two datasets through a real server and
// waits for the verdicts; a file that vanished is the third.
func TestUploadsAreJudged(t *testing.T) {
	server, err := eventlog.StartServer(eventlog.ServerOptions{Dir: t.TempDir(), NoSync: true})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	store, err := blobs.Open(t.Context(), blobs.Options{Dir: t.TempDir(), BaseURL: "http://127.0.0.1/blobs", Key: make([]byte, 32)})
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	world := projections.NewWorld()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	go func() { _ = world.Run(ctx, server.Log()) }()
	router, err := eventlog.NewRouter(server.Control(), eventlog.RouterConfig{Tries: 2, FirstPause: time.Millisecond})
	require.NoError(t, err)
	validator := tasks.Validator{Log: &stumbling{Log: server.Log(), fails: 1}, World: world, Blobs: store, Now: time.Now, Count: func(text string) int { return 7 * len(text) }}
	require.NoError(t, validator.Handle(router))
	go func() { _ = router.Run(ctx) }()

	do := func(name domain.Name, cmd domain.Command[domain.Dataset]) {
		position, err := eventlog.Do(ctx, server.Log(), world, eventlog.Request{Time: time.Now()}, domain.Intend(domain.Datasets, name, cmd))
		require.NoError(t, err)
		require.NoError(t, world.WaitFor(ctx, position))
	}
	upload := func(id, content string) domain.Dataset {
		name := domain.NewName("acme", "datasets", id)
		folder := "datasets/acme/" + id + "/1/"
		do(name, domain.CreateDataset{})
		if content != "" {
			_, err := store.Put(ctx, folder+"data.jsonl", strings.NewReader(content))
			require.NoError(t, err)
		}
		do(name, domain.UploadDataset{Upload: 1, Files: domain.Files{Folder: folder, Sizes: map[string]int64{"data.jsonl": int64(len(content))}}})
		for {
			view := world.View()
			if d, ok := view.Datasets.Get(name); ok && d.State.Validated == 1 {
				return d.State
			}
			select {
			case <-world.Changed(view.Position):
			case <-ctx.Done():
				t.Fatal("no verdict on ", id)
			}
		}
	}
	good := upload("good", row+row+row)
	require.Equal(t, domain.DatasetReady, good.State)
	require.Equal(t, domain.FormatCompletion, good.Format)
	require.EqualValues(t, 3, good.ExampleCount)
	require.EqualValues(t, 3*7*len("pc"), good.EstimatedTokenCount, "counted by the tokenizer, not guessed from bytes")

	bad := upload("bad", row+"{\n"+row)
	require.Equal(t, domain.DatasetUploading, bad.State)
	require.Contains(t, bad.Status.Message, "data.jsonl:2:")

	lost := upload("lost", "")
	require.Equal(t, domain.DatasetUploading, lost.State)
	require.Equal(t, "INTERNAL", lost.Status.Code)
}
