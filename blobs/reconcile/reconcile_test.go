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
	"anneal/blobs/reconcile/faults"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/secrets"
	"anneal/projections"
)

type harness struct {
	*testing.T
	log   *eventlog.Memory
	world *projections.World
	blobs *blobs.Store
	vault *secrets.Vault
	dir   string       // directory of the bucket
	plan  *faults.Plan // of changes of the bucket; nil injects no fault
}

func newHarness(t *testing.T) *harness {
	b := &harness{t, eventlog.NewMemory(), projections.NewWorld(), nil, secrets.NewMemoryVault(), t.TempDir(), nil}
	var err error
	b.blobs, err = blobs.Open(t.Context(),
		blobs.Options{Dir: b.dir, BaseURL: "http://127.0.0.1:1/blobs", Key: make([]byte, 32),
			Intercept: func(change, key string, do func() error) error { return b.plan.Do(change, key, do) }})
	require.NoError(t, err)
	b.background(func(ctx context.Context) { _ = b.world.Run(ctx, b.log) })
	b.doAt(time.Now().Add(-3*reconcile.UploadTime), domain.Intend(domain.Accounts, domain.NewName("", "accounts", "acme"),
		domain.CreateAccount{AccountSpec: domain.AccountSpec{DisplayName: "A", AccountType: domain.Enterprise}}))
	return b
}

func (b *harness) background(run func(context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	b.Cleanup(func() { stop(); running.Wait() })
}

func (b *harness) do(intent domain.Intent) {
	b.Helper()
	b.doAt(time.Now(), intent)
}

func (b *harness) doAt(at time.Time, intent domain.Intent) {
	b.Helper()
	result, err := eventlog.Do(b.Context(), b.log, b.world, eventlog.Request{Time: at, Actor: "test"}, intent)
	require.NoError(b, err)
	require.NoError(b, b.world.WaitFor(b.Context(), result.Position()))
}

func (b *harness) put(key string) {
	b.Helper()
	_, err := b.blobs.Put(b.Context(), key, strings.NewReader("x"))
	require.NoError(b, err)
}

// age sets the modification time of a file to two grace periods ago.
func (b *harness) age(key string) {
	b.Helper()
	old := time.Now().Add(-2 * reconcile.Grace)
	require.NoError(b, os.Chtimes(filepath.Join(b.dir, key), old, old))
}

// another returns a harness that shares the bucket and the key store of b and has another log. The first
// event of the log has the time began; if began is zero, the log is empty.
func (b *harness) another(began time.Time) *harness {
	b.Helper()
	o := &harness{b.T, eventlog.NewMemory(), projections.NewWorld(), b.blobs, b.vault, b.dir, nil}
	o.background(func(ctx context.Context) { _ = o.world.Run(ctx, o.log) })
	if !began.IsZero() {
		o.doAt(began, domain.Intend(domain.Accounts, domain.NewName("", "accounts", "acme"), domain.CreateAccount{
			AccountSpec: domain.AccountSpec{DisplayName: "B", AccountType: domain.Enterprise}}))
	}
	return o
}

func (b *harness) has(key string) bool {
	_, err := b.blobs.Size(b.Context(), key)
	return err == nil
}

func (b *harness) reconciler() *reconcile.Reconciler {
	return reconcile.New(reconcile.Options{Log: b.log, World: b.world, Blobs: b.blobs, Keys: b.vault})
}

const (
	secretName = domain.Name("accounts/acme/secrets/s")
	modelName  = domain.Name("accounts/acme/models/m")
)

func (b *harness) secret(command domain.Command[domain.Secret]) {
	b.Helper()
	b.do(domain.Intend(domain.Secrets, secretName, command))
}

func (b *harness) model(prefix string) {
	b.Helper()
	b.do(domain.Intend(domain.Models, modelName, domain.RegisterModel{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel},
		Files: domain.Files{Prefix: prefix, Sizes: map[string]int64{"a": 1}}}))
}

func (b *harness) seal() domain.Sealed {
	b.Helper()
	sealed, err := b.vault.Seal(b.Context(), secretName, []byte("v"))
	require.NoError(b, err)
	return sealed
}

func (b *harness) opens(sealed domain.Sealed) bool {
	_, err := b.vault.Open(b.Context(), secretName, sealed)
	return err == nil
}

// TestRunDeletesWhatIsDropped checks that Run deletes the data of deleted resources and replaced
// data within seconds, and keeps data that was never referred to for its grace period.
func TestRunDeletesWhatIsDropped(t *testing.T) {
	b := newHarness(t)
	first, second, orphan := b.seal(), b.seal(), b.seal()
	b.secret(domain.CreateSecret{KeyName: "K", Value: first})
	b.put("models/acme/e/1/a")
	b.put("models/acme/e/2/a")
	b.model("models/acme/e/1/")
	b.put("models/acme/e/old/a")
	old := time.Now().Add(-2 * reconcile.Grace)
	require.NoError(t, os.Chtimes(filepath.Join(b.dir, "models/acme/e/old/a"), old, old))
	b.background(func(ctx context.Context) { _ = b.reconciler().Run(ctx) })

	eventually := func(what string, is func() bool) {
		t.Helper()
		require.Eventually(t, is, 30*time.Second, 10*time.Millisecond, what)
	}
	eventually("an old orphan is deleted", func() bool { return !b.has("models/acme/e/old/a") })
	b.secret(domain.UpdateSecret{KeyName: "K", Value: &second})
	eventually("the replaced value is erased", func() bool { return !b.opens(first) })
	require.True(t, b.opens(second))
	b.secret(domain.RequestDeletion(domain.Secrets))
	b.secret(domain.DeleteSecret{})
	b.do(domain.Intend(domain.Models, modelName, domain.RequestDeletion(domain.Models)))
	b.do(domain.Intend(domain.Models, modelName, domain.DeleteModel{}))
	eventually("the value of a deleted secret is erased", func() bool { return !b.opens(second) })
	eventually("the files of a deleted model are deleted", func() bool { return !b.has("models/acme/e/1/a") })
	require.True(t, b.opens(orphan), "the event of a new value may come later")
	require.True(t, b.has("models/acme/e/2/a"), "the event of new files may come later")
}

// TestReconcile checks that Reconcile without a grace period keeps exactly the data that the world
// refers to, and that it can be repeated and run concurrently.
func TestReconcile(t *testing.T) {
	b := newHarness(t)
	kept, orphan := b.seal(), b.seal()
	b.secret(domain.CreateSecret{KeyName: "K", Value: kept})
	for _, key := range []string{"models/acme/e/1/a", "models/acme/e/late/a", "uploads/acme/d/rows.jsonl",
		"transient/acme/r/audio", "other/of/another/program"} {
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
	for key, want := range map[string]bool{"models/acme/e/1/a": true, "other/of/another/program": true,
		"models/acme/e/late/a":      false,
		"uploads/acme/d/rows.jsonl": false, "transient/acme/r/audio": false} {
		require.Equal(t, want, b.has(key), key)
	}
	require.NoError(t, b.reconciler().Reconcile(t.Context(), reconcile.Grace))
}

// TestFaultsAtEveryEffect injects a fault at each deletion. The next reconciliation must delete the
// rest, and nothing else.
func TestFaultsAtEveryEffect(t *testing.T) {
	run := func(plan *faults.Plan) []string {
		b := newHarness(t)
		kept, orphan := b.seal(), b.seal()
		b.secret(domain.CreateSecret{KeyName: "K", Value: kept})
		for _, key := range []string{"models/acme/e/1/a", "models/acme/e/2/a", "models/acme/e/3/a", "transient/acme/r/x"} {
			b.put(key)
		}
		b.model("models/acme/e/1/")
		require.NoError(t, b.reconciler().Reconcile(t.Context(), reconcile.Grace), "it claims the bucket")
		b.plan = plan
		_ = b.reconciler().Reconcile(t.Context(), 0) // fails where the plan injects a fault
		b.plan = nil
		require.NoError(t, b.reconciler().Reconcile(t.Context(), 0))
		require.True(t, b.opens(kept))
		require.False(t, b.opens(orphan))
		require.True(t, b.has("models/acme/e/1/a"))
		for _, key := range []string{"models/acme/e/2/a", "models/acme/e/3/a", "transient/acme/r/x"} {
			require.False(t, b.has(key), key)
		}
		return plan.Steps()
	}
	steps := run(faults.NewPlan("", 0))
	require.Len(t, steps, 3)
	for _, mode := range []faults.Mode{faults.Crash, faults.Full} { // a full disk refuses no deletion
		for at := range len(steps) {
			run(faults.NewPlan(mode, at+1))
		}
	}
}

// TestUnvalidatedUploadsExpire checks that the files of an upload that is never validated are
// deleted UploadTime after the newest file was stored, and not earlier.
func TestUnvalidatedUploadsExpire(t *testing.T) {
	b := newHarness(t)
	name := domain.Name("accounts/acme/datasets/d")
	b.do(domain.Intend(domain.Datasets, name, domain.CreateDataset{}))
	row, ok := b.world.View().Datasets.Get(name)
	require.True(t, ok)
	prefix := blobs.StagingPrefix(name, row.CreateEvent, 1)
	arrived := func(file string, age time.Duration) {
		b.put(prefix + file)
		at := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(filepath.Join(b.dir, prefix+file), at, at))
	}
	arrived("early.jsonl", 2*reconcile.UploadTime)
	arrived("late.jsonl", reconcile.UploadTime-time.Hour)
	require.NoError(t, b.reconciler().Reconcile(t.Context(), reconcile.Grace))
	require.True(t, b.has(prefix+"early.jsonl"), "the upload continues")
	require.True(t, b.has(prefix+"late.jsonl"))
	arrived("late.jsonl", reconcile.UploadTime)
	require.NoError(t, b.reconciler().Reconcile(t.Context(), reconcile.Grace))
	require.False(t, b.has(prefix+"early.jsonl"))
	require.False(t, b.has(prefix+"late.jsonl"))
}

// TestRunDeletesTheFilesOfARecordedUpload checks that the uploaded files of a model that is created and
// validated before Run looks at the world are deleted within seconds, because they count against the
// storage quota, and that those of an upload that is not validated are kept.
func TestRunDeletesTheFilesOfARecordedUpload(t *testing.T) {
	b := newHarness(t)
	b.background(func(ctx context.Context) { _ = b.reconciler().Run(ctx) })
	waiting := domain.Name("accounts/acme/models/waiting")
	b.do(domain.Intend(domain.Models, waiting, domain.CreateModel{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel}}))
	row, _ := b.world.View().Models.Get(waiting)
	kept := blobs.StagingPrefix(waiting, row.CreateEvent, 1) + "a"
	b.put(kept)
	b.put("arrivals/acme/e/1/a")
	b.model("models/acme/e/1-x/")
	require.Eventually(t, func() bool { return !b.has("arrivals/acme/e/1/a") }, 30*time.Second, 10*time.Millisecond)
	require.True(t, b.has(kept), "the upload continues")
}

// TestACopyOfAnOldFileHasItsGrace checks that a new copy of an old file is kept for the grace
// period, because the event that refers to the copy is recorded later.
func TestACopyOfAnOldFileHasItsGrace(t *testing.T) {
	b := newHarness(t)
	b.put("arrivals/acme/e/1/a")
	old := time.Now().Add(-2 * reconcile.Grace)
	require.NoError(t, os.Chtimes(filepath.Join(b.dir, "arrivals/acme/e/1/a"), old, old))
	require.NoError(t, b.blobs.Copy(t.Context(), "datasets/acme/e/1-x/a", "arrivals/acme/e/1/a"))
	require.NoError(t, b.reconciler().Reconcile(t.Context(), time.Minute))
	require.True(t, b.has("datasets/acme/e/1-x/a"))
}

// TestAnotherLogDeletesNothing checks that a control plane with an empty, new or different log
// deletes nothing in a bucket and a key store that belong to another log.
func TestAnotherLogDeletesNothing(t *testing.T) {
	old := time.Now().Add(-3 * reconcile.Grace)
	for _, claimed := range []bool{false, true} {
		for what, began := range map[string]time.Time{"an empty log": {}, "a new log": time.Now(), "another log": old} {
			if !claimed && what == "another log" {
				continue // a log cannot detect that data without an owner belongs to a log of the same age
			}
			t.Run(what, func(t *testing.T) {
				b := newHarness(t)
				key := b.seal()
				b.put("models/acme/e/1/a")
				b.age("models/acme/e/1/a")
				b.model("models/acme/e/1/")
				b.secret(domain.CreateSecret{KeyName: "K", Value: key})
				if claimed {
					require.NoError(t, b.reconciler().Reconcile(t.Context(), 0))
				}
				o := b.another(began)
				err := o.reconciler().Reconcile(t.Context(), 0)
				if what == "an empty log" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, "sweep.adopt")
				}
				ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
				defer stop()
				_ = o.reconciler().Run(ctx)
				require.True(t, b.has("models/acme/e/1/a"))
				require.True(t, b.opens(key))
				require.NoError(t, b.reconciler().Reconcile(t.Context(), 0), "the owner continues")
			})
		}
	}
}

// TestALogAdoptsABucket checks that a log takes over the bucket of another log when AdoptFile
// exists, and that files older than the log stay.
func TestALogAdoptsABucket(t *testing.T) {
	b := newHarness(t)
	for _, key := range []string{"models/acme/e/1/a", "models/acme/e/2/a"} {
		b.put(key)
	}
	b.age("models/acme/e/1/a")
	require.NoError(t, b.reconciler().Reconcile(t.Context(), 3*reconcile.Grace))
	o, dir := b.another(time.Now().Add(-reconcile.Grace)), t.TempDir()
	adopting := reconcile.New(reconcile.Options{Log: o.log, World: o.world, Blobs: b.blobs, Keys: b.vault, Dir: dir})
	require.Error(t, adopting.Reconcile(t.Context(), 0))
	adopt := filepath.Join(dir, reconcile.AdoptFile)
	require.NoError(t, os.WriteFile(adopt, nil, 0o600))
	require.NoError(t, adopting.Reconcile(t.Context(), 0))
	require.NoFileExists(t, adopt)
	require.True(t, b.has("models/acme/e/1/a"), "older than the log")
	require.False(t, b.has("models/acme/e/2/a"))
	require.ErrorContains(t, b.reconciler().Reconcile(t.Context(), 0), "belongs to the log")
}

// TestHoldFile checks that nothing is deleted while HoldFile exists, and that unreferenced data is
// deleted after its removal.
func TestHoldFile(t *testing.T) {
	b, dir := newHarness(t), t.TempDir()
	first, second := b.seal(), b.seal()
	b.secret(domain.CreateSecret{KeyName: "K", Value: first})
	b.put("models/acme/e/old/a")
	b.age("models/acme/e/old/a")
	hold := filepath.Join(dir, reconcile.HoldFile)
	require.NoError(t, os.WriteFile(hold, []byte("events were lost\n"), 0o600))
	held := func() *reconcile.Reconciler {
		return reconcile.New(reconcile.Options{Log: b.log, World: b.world, Blobs: b.blobs, Keys: b.vault, Dir: dir})
	}
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
	defer stop()
	time.AfterFunc(time.Second, func() { b.secret(domain.UpdateSecret{KeyName: "K", Value: &second}) })
	_ = held().Run(ctx)
	require.ErrorContains(t, held().Reconcile(t.Context(), 0), "events were lost")
	require.True(t, b.has("models/acme/e/old/a"))
	require.True(t, b.opens(first))
	require.NoError(t, os.Remove(hold))
	require.NoError(t, held().Reconcile(t.Context(), 0))
	require.False(t, b.has("models/acme/e/old/a"))
	require.False(t, b.opens(first))
}
