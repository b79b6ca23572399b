package reconcile_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/blobs/reconcile"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

type bench struct {
	*testing.T
	log   *eventlog.Memory
	world *projections.World
	blobs *blobs.Store
	vault *eventlog.Vault
	dir   string // of the files
}

func newBench(t *testing.T) *bench {
	b := &bench{t, eventlog.NewMemory(), projections.NewWorld(), nil, eventlog.NewMemoryVault(), t.TempDir()}
	var err error
	b.blobs, err = blobs.Open(t.Context(), blobs.Options{Dir: b.dir, BaseURL: "http://127.0.0.1:1/blobs", Key: make([]byte, 32)})
	require.NoError(t, err)
	b.background(func(ctx context.Context) { _ = b.world.Run(ctx, b.log) })
	return b
}

func (b *bench) background(run func(context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	b.Cleanup(func() { stop(); running.Wait() })
}

func (b *bench) do(intent domain.Intent) {
	b.Helper()
	result, err := eventlog.Do(b.Context(), b.log, b.world, eventlog.Request{Time: time.Now(), Actor: "test"}, intent)
	require.NoError(b, err)
	require.NoError(b, b.world.WaitFor(b.Context(), result.Position()))
}

func (b *bench) put(key string) {
	b.Helper()
	_, err := b.blobs.Put(b.Context(), key, strings.NewReader("x"))
	require.NoError(b, err)
}

func (b *bench) has(key string) bool {
	_, err := b.blobs.Size(b.Context(), key)
	return err == nil
}

func (b *bench) reconciler() *reconcile.Reconciler {
	return reconcile.New(reconcile.Options{Log: b.log, World: b.world, Blobs: b.blobs, Keys: b.vault})
}

const (
	secretName = domain.Name("accounts/acme/secrets/s")
	modelName  = domain.Name("accounts/acme/models/m")
)

func (b *bench) secret(command domain.Command[domain.Secret]) {
	b.Helper()
	b.do(domain.Intend(domain.Secrets, secretName, command))
}

func (b *bench) model(folder string) {
	b.Helper()
	b.do(domain.Intend(domain.Models, modelName, domain.Command[domain.Model](domain.RegisterModel{
		ModelSpec: domain.ModelSpec{Kind: domain.BaseModel}, Files: domain.Files{Folder: folder, Sizes: map[string]int64{"a": 1}}})))
}

func (b *bench) seal() domain.Sealed {
	b.Helper()
	sealed, err := b.vault.Seal(b.Context(), secretName, []byte("v"))
	require.NoError(b, err)
	return sealed
}

func (b *bench) opens(sealed domain.Sealed) bool {
	_, err := b.vault.Open(b.Context(), secretName, sealed)
	return err == nil
}

// What is deleted or replaced is gone within seconds; what nothing ever referred
// to has its grace.
func TestRunDeletesWhatIsDropped(t *testing.T) {
	b := newBench(t)
	first, second, orphan := b.seal(), b.seal(), b.seal()
	b.secret(domain.CreateSecret{KeyName: "K", Value: first})
	b.put("models/acme/e/1/a")
	b.put("models/acme/e/2/a")
	b.model("models/acme/e/1/")
	b.put("models/acme/e/old/a")
	old := time.Now().Add(-2 * reconcile.Grace)
	require.NoError(t, os.Chtimes(filepath.Join(b.dir, "models/acme/e/old/a"), old, old))
	b.background(func(ctx context.Context) { _ = b.reconciler().Run(ctx) })

	gone := func(what string, is func() bool) {
		t.Helper()
		require.Eventually(t, is, 30*time.Second, 10*time.Millisecond, what)
	}
	gone("what was left behind long ago", func() bool { return !b.has("models/acme/e/old/a") })
	b.secret(domain.UpdateSecret{KeyName: "K", Value: &second})
	gone("the value that was replaced", func() bool { return !b.opens(first) })
	require.True(t, b.opens(second))
	b.secret(domain.RequestDeletion(domain.Secrets))
	b.secret(domain.DeleteSecret{})
	b.do(domain.Intend(domain.Models, modelName, domain.RequestDeletion(domain.Models)))
	b.do(domain.Intend(domain.Models, modelName, domain.Command[domain.Model](domain.DeleteModel{})))
	gone("the value of a deleted secret", func() bool { return !b.opens(second) })
	gone("the files of a deleted model", func() bool { return !b.has("models/acme/e/1/a") })
	require.True(t, b.opens(orphan), "a value that may yet be recorded")
	require.True(t, b.has("models/acme/e/2/a"), "files that may yet be recorded")
}

// A pass without grace leaves exactly what the world refers to; it is idempotent,
// also when several are at work.
func TestReconcile(t *testing.T) {
	b := newBench(t)
	kept, orphan := b.seal(), b.seal()
	b.secret(domain.CreateSecret{KeyName: "K", Value: kept})
	for _, key := range []string{"models/acme/e/1/a", "models/acme/e/late/a", "uploads/acme/d/rows.jsonl", "transient/acme/r/audio", "other/of/somebody/else"} {
		b.put(key)
	}
	b.model("models/acme/e/1/")
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() { assert.NoError(t, b.reconciler().Reconcile(t.Context(), 0)) })
	}
	all.Wait()
	require.True(t, b.opens(kept))
	require.False(t, b.opens(orphan))
	for key, there := range map[string]bool{"models/acme/e/1/a": true, "other/of/somebody/else": true, "models/acme/e/late/a": false,
		"uploads/acme/d/rows.jsonl": false, "transient/acme/r/audio": false} {
		require.Equal(t, there, b.has(key), key)
	}
	require.NoError(t, b.reconciler().Reconcile(t.Context(), reconcile.Grace))
}

// Files of an upload that nobody validates are kept for UploadTime after the last
// of them arrived, and no longer.
func TestUploadsThatNobodyValidatesExpire(t *testing.T) {
	b := newBench(t)
	name := domain.Name("accounts/acme/datasets/d")
	b.do(domain.Intend(domain.Datasets, name, domain.Command[domain.Dataset](domain.CreateDataset{})))
	row, ok := b.world.View().Datasets.Get(name)
	require.True(t, ok)
	folder := blobs.Arrivals(name, row.CreateEvent, 1)
	arrived := func(file string, age time.Duration) {
		b.put(folder + file)
		at := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(filepath.Join(b.dir, folder+file), at, at))
	}
	arrived("early.jsonl", 2*reconcile.UploadTime)
	arrived("late.jsonl", reconcile.UploadTime-time.Hour)
	require.NoError(t, b.reconciler().Reconcile(t.Context(), reconcile.Grace))
	require.True(t, b.has(folder+"early.jsonl"), "the upload goes on")
	require.True(t, b.has(folder+"late.jsonl"))
	arrived("late.jsonl", reconcile.UploadTime)
	require.NoError(t, b.reconciler().Reconcile(t.Context(), reconcile.Grace))
	require.False(t, b.has(folder+"early.jsonl"))
	require.False(t, b.has(folder+"late.jsonl"))
}

// A copy of an old file is as young as the copying: its event is yet to come.
func TestACopyOfAnOldFileHasItsGrace(t *testing.T) {
	b := newBench(t)
	b.put("arrivals/acme/e/1/a")
	old := time.Now().Add(-2 * reconcile.Grace)
	require.NoError(t, os.Chtimes(filepath.Join(b.dir, "arrivals/acme/e/1/a"), old, old))
	require.NoError(t, b.blobs.Copy(t.Context(), "datasets/acme/e/1-x/a", "arrivals/acme/e/1/a"))
	require.NoError(t, b.reconciler().Reconcile(t.Context(), time.Minute))
	require.True(t, b.has("datasets/acme/e/1-x/a"))
}
