package backup_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/blobs/reconcile"
	"anneal/domain"
	"anneal/internal/backup"
	"anneal/internal/datadir"
	"anneal/internal/testutil"
)

func TestBackupsAreIncrementalAndRestoreAnyPosition(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	from.create(1)
	from.create(2)
	first := to.backup(from)
	require.Equal(t, from.world.Position(), first.Position)
	require.Equal(t, 2, first.Files.Count)
	from.create(3)
	second := to.backup(from)
	before := from.world.Position()
	from.remove(1)
	require.NoError(t, from.reconciler.Reconcile(t.Context(), 0))
	third := to.backup(from)
	require.Equal(t, second.ID, third.Parent)
	require.Equal(t, first.Position+1, second.Events[0].First, "each backup has the events since its parent")
	require.Equal(t, second.Position, second.Events[0].Last)
	require.Equal(t, 2, third.Files.Count)
	require.Less(t, second.Copied, first.Copied, "files are copied once")

	digest, err := from.world.View().Digest()
	require.NoError(t, err)
	dir, restored, err := to.restore(backup.RestoreSettings{})
	require.NoError(t, err)
	require.Equal(t, third.Checkpoint, restored.Checkpoint)
	require.Equal(t, digest.SHA256, restored.SHA256)
	require.Empty(t, restored.Missing)
	require.Equal(t, 2, restored.DataKeys)
	again := open(t, dir)
	again.check(2, 3)
	again.create(4) // the restored log accepts events
	again.check(2, 3, 4)

	dir, restored, err = to.restore(backup.RestoreSettings{Position: before})
	require.NoError(t, err)
	require.Equal(t, second.ID, restored.Backup)
	require.Empty(t, restored.Missing)
	open(t, dir).check(1, 2, 3)

	_, restored, err = to.restore(backup.RestoreSettings{Position: first.Position + 1}) // model 3 without its secret
	require.NoError(t, err)
	require.Equal(t, first.Position+1, restored.Position)
	require.Equal(t, 3, restored.Files)

	dir, restored, err = to.restore(backup.RestoreSettings{Position: before + 1}) // the deletion of model 1 was requested
	require.NoError(t, err)
	require.Equal(t, third.ID, restored.Backup)
	require.Empty(t, restored.Missing, "files and keys that were deleted meanwhile come from earlier backups")
	open(t, dir).check(1, 2, 3)

	_, restored, err = to.restore(backup.RestoreSettings{Time: first.Time})
	require.NoError(t, err)
	require.Equal(t, first.Checkpoint, restored.Checkpoint)
}

func TestRestoreRefuses(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	_, _, err := to.restore(backup.RestoreSettings{})
	require.ErrorContains(t, err, "has no complete backup")
	from.create(1)
	m := to.backup(from)
	other := newTarget(t)
	_, _, err = to.restore(backup.RestoreSettings{Identities: other.identity})
	require.ErrorContains(t, err, "cannot decrypt backup "+m.ID)
	_, _, err = to.restore(backup.RestoreSettings{Position: m.Position + 1})
	require.Equal(t, domain.OutOfRange, domain.CodeOf(err))
	_, _, err = to.restore(backup.RestoreSettings{Time: m.Time.Add(1)})
	require.Equal(t, domain.OutOfRange, domain.CodeOf(err))
	_, err = backup.Restore(t.Context(), to.bucket, from.dir, backup.RestoreSettings{})
	require.ErrorContains(t, err, "is not empty")

	stranger := newInstallation(t)
	_, err = backup.Run(t.Context(), stranger.source(), to.bucket, to.settings, func(int64) {})
	require.ErrorContains(t, err, "backups of another installation")
	_, err = backup.Run(t.Context(), from.source(), to.bucket, backup.Settings{}, func(int64) {})
	require.ErrorContains(t, err, "recipients: a backup contains the keys of the installation, and needs a recipient")
	_, err = backup.Run(t.Context(), from.source(), to.bucket, backup.Settings{Recipients: []string{"age1x"}},
		func(int64) {})
	require.ErrorContains(t, err, `recipients: "age1x" is not a public key of age`)
}

// TestDamagedBackups checks that a restore from a backup with a flipped byte, or without one of its
// objects, fails and leaves no data directory.
func TestDamagedBackups(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	from.claim("acme.key", time.Now(), from.world.Position)
	from.create(1)
	to.backup(from)
	from.create(2)
	to.backup(from)
	random := rand.New(rand.NewPCG(1, 2))
	var objects []string
	for _, prefix := range []string{"events/", "files/", "lists/", "secrets/", "answers/"} {
		for f, err := range to.bucket.List(t.Context(), prefix) {
			require.NoError(t, err)
			objects = append(objects, f.Key)
		}
	}
	require.Len(t, objects, 10)
	damaged := 0
	for n, key := range objects {
		path := filepath.Join(to.dir, key)
		content := testutil.ReadFile(t, path)
		if n%2 == 0 {
			require.NoError(t, os.Remove(path))
		} else {
			flipped := append([]byte(nil), content...)
			flipped[random.IntN(len(flipped))] ^= 1 << random.IntN(8)
			require.NoError(t, os.WriteFile(path, flipped, 0o600))
		}
		dir, _, err := to.restore(backup.RestoreSettings{})
		if err != nil {
			damaged++
			require.NoDirExists(t, string(dir))
		}
		require.NoError(t, os.WriteFile(path, content, 0o600))
	}
	// The list, the secrets and the responses of the first backup are not part of the second one.
	require.Equal(t, len(objects)-3, damaged)
	_, _, err := to.restore(backup.RestoreSettings{})
	require.NoError(t, err, "all objects are whole again")
}

// TestBackupsOfAChangingInstallation checks that backups, which are made while clients create and
// delete resources and the reconciler deletes their data, have all data of their position.
func TestBackupsOfAChangingInstallation(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for client := range 4 {
		clients.Go(func() {
			const lifetime = 2 * time.Second // longer than the reconciler takes to see a resource
			first := 1000 * (client + 1)
			var created []time.Time
			for n := first; ctx.Err() == nil; n++ {
				from.create(n)
				created = append(created, time.Now())
				for len(created) > 0 && time.Since(created[0]) > lifetime {
					from.remove(n + 1 - len(created))
					created = created[1:]
				}
			}
		})
	}
	var positions []uint64
	for began := time.Now(); time.Since(began) < 4*time.Second; { // until the reconciler has deleted something
		m := to.backup(from)
		require.Empty(t, m.Files.Missing)
		positions = append(positions, m.Position)
	}
	stop()
	clients.Wait()
	m := to.backup(from)
	require.Less(t, m.Files.Count, int(m.Position/6), "some models were deleted: each has 2 events, and its secret 4")
	for _, position := range []uint64{positions[0], m.Position} {
		_, restored, err := to.restore(backup.RestoreSettings{Position: position})
		require.NoError(t, err)
		require.Equal(t, position, restored.Position)
		require.Empty(t, restored.Missing)
	}
}

// TestInterruptedBackups interrupts a backup after each object that it stores. The backup before
// remains the newest one and can be restored, and the next backup completes.
func TestInterruptedBackups(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	from.claim("acme.key", time.Now(), from.world.Position)
	from.create(1)
	whole := to.backup(from)
	cut := errors.New("cut")
	from.create(2)
	for stored := 0; ; stored++ {
		left := stored
		bucket, err := blobs.Open(t.Context(), blobs.Options{Dir: to.dir, BaseURL: "http://127.0.0.1:1/blobs",
			Key: make([]byte, 32), Intercept: func(_, _ string, do func() error) error {
				if left == 0 {
					return cut
				}
				left--
				return do()
			}})
		require.NoError(t, err)
		_, err = backup.Run(t.Context(), from.source(), bucket, to.settings, func(int64) {})
		require.NoError(t, bucket.Close())
		if err == nil {
			require.Equal(t, 6, stored, "events, files, list, secrets, responses and manifest")
			break
		}
		require.ErrorIs(t, err, cut)
		all, err := backup.IDs(t.Context(), to.bucket)
		require.NoError(t, err)
		require.Equal(t, []string{whole.ID}, all)
	}
	_, restored, err := to.restore(backup.RestoreSettings{})
	require.NoError(t, err)
	require.Equal(t, from.world.Position(), restored.Position)
}

// TestInterruptedRestores cuts off a restore at the beginning of each of its steps, and checks that
// the data directory does not exist, and that the next restore creates it.
func TestInterruptedRestores(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	from.create(1)
	to.backup(from)
	dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
	settings := backup.RestoreSettings{Identities: to.identity, Logger: slog.New(slog.DiscardHandler)}
	for _, what := range []string{"events", "state", "data keys", "files", "usage records"} {
		ctx, cancel := context.WithCancel(t.Context())
		settings.Progress = func(step string) {
			if step == "restoring "+what {
				cancel()
			}
		}
		_, err := backup.Restore(ctx, to.bucket, dir, settings)
		require.ErrorIs(t, err, context.Canceled, what)
		require.NoDirExists(t, string(dir))
		require.ErrorContains(t, (dir + ".restoring").CheckRestored(), "run the same `anneal restore` command again")
	}
	settings.Progress = func(string) {
		_, err := backup.Restore(t.Context(), to.bucket, dir, backup.RestoreSettings{Identities: to.identity,
			Logger: slog.New(slog.DiscardHandler)})
		require.ErrorContains(t, err, "is in use by process", "another restore to the same directory")
	}
	_, err := backup.Restore(t.Context(), to.bucket, dir, settings)
	require.NoError(t, err)
	require.NoDirExists(t, string(dir)+".restoring")
	open(t, dir).check(1)
}

// TestInterruptedRestoresToABucketContinue cuts off a restore with a bucket of its own after the
// files, and checks that the next restore uses the same bucket, until an installation has started
// with it.
func TestInterruptedRestoresToABucketContinue(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	from.create(1)
	to.backup(from)
	dir, ctx := datadir.Dir(filepath.Join(t.TempDir(), "data")), t.Context()
	settings := backup.RestoreSettings{Identities: to.identity, Logger: slog.New(slog.DiscardHandler),
		Bucket: "file://" + t.TempDir()}
	cut, cancel := context.WithCancel(ctx)
	settings.Progress = func(step string) {
		if step == "restoring usage records" {
			cancel()
		}
	}
	_, err := backup.Restore(cut, to.bucket, dir, settings)
	require.ErrorIs(t, err, context.Canceled)
	settings.Progress = nil
	_, err = backup.Restore(ctx, to.bucket, dir, settings)
	require.NoError(t, err)

	bucket, err := blobs.Open(ctx, blobs.Options{URL: settings.Bucket, BaseURL: "http://127.0.0.1:1/blobs",
		Key: make([]byte, 32)})
	require.NoError(t, err)
	i := open(t, dir)
	require.NoError(t, reconcile.New(reconcile.Options{Log: i.server.Log(), World: i.world, Blobs: bucket,
		Keys: i.vault}).Reconcile(ctx, 0))
	owner, err := bucket.Owner(ctx)
	require.NoError(t, err)
	first, err := i.server.Log().At(ctx, 1)
	require.NoError(t, err)
	require.Equal(t, first.ID, owner, "the restored installation owns the bucket")
	require.NoError(t, bucket.Close())
	_, err = backup.Restore(ctx, to.bucket, dir+"2", settings)
	require.ErrorContains(t, err, "choose an empty bucket")
}

// A countdown is a context that is cancelled when it is used for the nth time.
type countdown struct {
	context.Context
	cancel context.CancelFunc
	left   atomic.Int64
}

func (c *countdown) count() {
	if c.left.Add(-1) == 0 {
		c.cancel()
	}
}

func (c *countdown) Done() <-chan struct{} { c.count(); return c.Context.Done() }
func (c *countdown) Err() error            { c.count(); return c.Context.Err() }

// TestRestoresEndAnywhere cancels restores at ever later points, also within their steps: each
// either creates no data directory, or is complete.
func TestRestoresEndAnywhere(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	from.create(1)
	to.backup(from)
	dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
	cut := 0
	for n := int64(1); ; n += 1 + n/3 {
		ctx, cancel := context.WithCancel(t.Context())
		c := &countdown{Context: ctx, cancel: cancel}
		c.left.Store(n)
		_, err := backup.Restore(c, to.bucket, dir, backup.RestoreSettings{Identities: to.identity,
			Logger: slog.New(slog.DiscardHandler)})
		cancel()
		if err == nil {
			break
		}
		require.ErrorIs(t, err, context.Canceled)
		require.NoDirExists(t, string(dir))
		cut++
	}
	require.Greater(t, cut, 5)
	open(t, dir).check(1)
}
