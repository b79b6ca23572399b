package backup_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/domain"
	"anneal/internal/backup"
	"anneal/internal/testutil"
)

// objects returns the keys of all objects of a target.
func (to *target) objects() (all []string) {
	to.Helper()
	for _, prefix := range []string{"manifests/", "events/", "usage/", "files/", "lists/", "secrets/"} {
		for f, err := range to.bucket.List(to.Context(), prefix) {
			require.NoError(to, err)
			all = append(all, f.Key)
		}
	}
	return all
}

func (to *target) prune(from *installation, keep backup.Retention) backup.Pruned {
	to.Helper()
	pruned, err := backup.Prune(to.Context(), to.bucket, from.source(), keep)
	require.NoError(to, err)
	return pruned
}

func (to *target) ids() []string {
	to.Helper()
	ids, err := backup.IDs(to.Context(), to.bucket)
	require.NoError(to, err)
	return ids
}

// fourBackups makes four backups: each has a model of its own, and the third one lacks the first
// model.
func fourBackups(from *installation, to *target) (all []backup.Manifest) {
	for n := 1; n <= 4; n++ {
		from.create(n)
		if n == 3 {
			from.remove(1)
			require.NoError(from, from.reconciler.Reconcile(from.Context(), 0))
		}
		all = append(all, to.backup(from))
	}
	return all
}

func TestPrunedBackups(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	all := fourBackups(from, to)
	before := len(to.objects())
	foreign := filepath.Join(to.dir, "secrets", "notes")
	_, err := to.bucket.Put(t.Context(), "secrets/notes", strings.NewReader("not of a backup"))
	require.NoError(t, err)
	_, err = to.bucket.Put(t.Context(), "secrets/20990101T000000.000000Z.age", strings.NewReader("of a running backup"))
	require.NoError(t, err)

	require.Empty(t, to.prune(from, backup.Retention{Newest: 4}).Removed)
	require.Len(t, to.ids(), 4)
	require.Empty(t, to.prune(from, backup.Retention{Since: all[0].Time}).Removed)
	pruned := to.prune(from, backup.Retention{Newest: 1, Since: all[2].Time})
	require.Equal(t, []string{all[2].ID, all[3].ID}, pruned.Kept)
	require.Equal(t, []string{all[0].ID, all[1].ID}, pruned.Removed)
	require.Equal(t, pruned.Kept, to.ids())
	// Of each removed backup: the manifest, the list and the secrets; and the model that was deleted.
	require.Equal(t, 2*2+1, pruned.Objects)
	require.Len(t, to.objects(), before-2*3-1+2)
	require.FileExists(t, foreign)
	require.Zero(t, to.prune(from, backup.Retention{Newest: 2}).Objects, "nothing is left to delete")

	for _, m := range all[2:] {
		dir, restored, err := to.restore(backup.RestoreSettings{Position: m.Position})
		require.NoError(t, err)
		require.Equal(t, m.Checkpoint, restored.Checkpoint)
		require.Equal(t, m.ID, restored.Backup)
		require.Empty(t, restored.Missing)
		require.NotEmpty(t, restored.Key)
		if m.ID == all[3].ID {
			open(t, dir).check(2, 3, 4)
		}
	}
	_, restored, err := to.restore(backup.RestoreSettings{Position: all[0].Position})
	require.NoError(t, err, "the events of an earlier position are kept")
	require.Contains(t, restored.Missing, modelFile(1), "what was deleted since then is not")

	from.create(5)
	fifth := to.backup(from)
	require.Equal(t, all[3].ID, fifth.Parent)
	require.Equal(t, 1, fifth.Files.Count-all[3].Files.Count)
	require.Equal(t, []string{fifth.ID}, to.prune(from, backup.Retention{}).Kept, "the newest stays")
	dir, restored, err := to.restore(backup.RestoreSettings{})
	require.NoError(t, err)
	require.Empty(t, restored.Missing)
	open(t, dir).check(2, 3, 4, 5)
}

// TestInterruptedPrunes cuts off a Prune at each change of the bucket. All backups that have a
// manifest can be restored, also those that are to be kept, and the repeated Prune has the same
// result.
func TestInterruptedPrunes(t *testing.T) {
	from := newInstallation(t)
	cut, steps := errors.New("cut"), 0
	for done := false; !done; steps++ {
		to := newTarget(t)
		var all []backup.Manifest
		for n := range 3 {
			if steps == 0 {
				from.create(n)
			}
			all = append(all, to.backup(from))
		}
		bucket := to.interrupted(steps, cut)
		_, err := backup.Prune(t.Context(), bucket, from.source(), backup.Retention{Newest: 1})
		require.NoError(t, bucket.Close())
		if done = err == nil; !done {
			require.ErrorIs(t, err, cut)
		}
		require.Contains(t, to.ids(), all[2].ID)
		_, restored, err := to.restore(backup.RestoreSettings{})
		require.NoError(t, err)
		require.Equal(t, all[2].Checkpoint, restored.Checkpoint)
		require.Empty(t, restored.Missing)
		to.prune(from, backup.Retention{Newest: 1})
		require.Equal(t, []string{all[2].ID}, to.ids())
		_, restored, err = to.restore(backup.RestoreSettings{})
		require.NoError(t, err)
		require.Empty(t, restored.Missing)
	}
	require.Greater(t, steps, 5, "a manifest is replaced, two are deleted, and their secrets")
}

// interrupted returns the bucket of a target that fails after a number of changes.
func (to *target) interrupted(changes int, cut error) *blobs.Store {
	to.Helper()
	bucket, err := blobs.Open(to.Context(), blobs.Options{Dir: to.dir, BaseURL: "http://127.0.0.1:1/blobs",
		Key: make([]byte, 32), Intercept: func(_, _ string, do func() error) error {
			if changes == 0 {
				return cut
			}
			changes--
			return do()
		}})
	require.NoError(to, err)
	return bucket
}

// TestInterruptedPruneThatThenKeepsMore cuts off a Prune at each change of the bucket, and then
// keeps more backups: those that are left can be restored.
func TestInterruptedPruneThatThenKeepsMore(t *testing.T) {
	from, cut, left := newInstallation(t), errors.New("cut"), map[int]bool{}
	for steps, done := 0, false; !done; steps++ {
		to := newTarget(t)
		var all []backup.Manifest
		for range 4 {
			all = append(all, to.backup(from))
		}
		bucket := to.interrupted(steps, cut)
		_, err := backup.Prune(t.Context(), bucket, from.source(), backup.Retention{Newest: 1})
		require.NoError(t, bucket.Close())
		if done = err == nil; !done {
			require.ErrorIs(t, err, cut)
		}
		kept := to.prune(from, backup.Retention{Newest: 3}).Kept
		require.Equal(t, kept, to.ids())
		require.Contains(t, kept, all[3].ID)
		left[len(kept)] = true
		_, restored, err := to.restore(backup.RestoreSettings{})
		require.NoError(t, err)
		require.Equal(t, all[3].Checkpoint, restored.Checkpoint)
		_, restored, err = to.restore(backup.RestoreSettings{Position: 1})
		require.NoError(t, err)
		require.Contains(t, kept, restored.Backup)
	}
	require.Equal(t, map[int]bool{3: true, 2: true, 1: true}, left)
}

// TestChangedManifests changes the manifest of each of two backups in several ways. A restore
// refuses it by name with the key of the installation, and, unless the signature is removed, also
// without.
func TestChangedManifests(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	from.create(1)
	first := to.backup(from)
	from.create(2)
	second := to.backup(from)
	key := from.key()
	_, restored, err := to.restore(backup.RestoreSettings{Key: key})
	require.NoError(t, err)
	require.Equal(t, key.Name(), restored.Key)
	content, _, err := backup.NewIdentity(from.signer().Key())
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "identity")
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	pinned, err := backup.ReadKey(file)
	require.NoError(t, err)
	require.Equal(t, key.Name(), pinned.Name())
	require.Equal(t, key.KeyHash(), pinned.KeyHash())
	_, err = backup.ReadIdentities(file)
	require.NoError(t, err)
	_, _, err = to.restore(backup.RestoreSettings{Key: newInstallation(t).key()})
	require.ErrorContains(t, err, "the manifest of backup "+second.ID+" was changed, or another installation made it")

	path := func(m backup.Manifest) string { return filepath.Join(to.dir, "manifests", m.ID+".json") }
	for _, m := range []backup.Manifest{first, second} {
		whole := string(testutil.ReadFile(t, path(m)))
		other := string(testutil.ReadFile(t, path(first)))
		if m.ID == first.ID {
			other = string(testutil.ReadFile(t, path(second)))
		}
		body, signature, _ := strings.Cut(whole, "\n")
		_, otherSignature, _ := strings.Cut(other, "\n")
		for what, changed := range map[string]string{
			"a value":           strings.Replace(body, `"version":"test"`, `"version":"tost"`, 1) + "\n" + signature,
			"white space":       strings.Replace(body, `"format":1`, `"format": 1`, 1) + "\n" + signature,
			"another signature": body + "\n" + otherSignature,
			"another manifest":  other,
			"a cut signature":   body + "\n" + signature[:len(signature)-10],
			"no signature":      body + "\n",
		} {
			to.overwrite(path(m), changed)
			_, _, err := to.restore(backup.RestoreSettings{Key: key})
			require.ErrorContains(t, err, m.ID, what)
			_, restored, err := to.restore(backup.RestoreSettings{})
			if what == "no signature" {
				require.NoError(t, err)
				require.Empty(t, restored.Key)
				continue
			}
			require.ErrorContains(t, err, m.ID, what)
			require.Equal(t, domain.DataLoss, domain.CodeOf(err), what)
			_, err = backup.Prune(t.Context(), to.bucket, from.source(), backup.Retention{Newest: 1})
			require.ErrorContains(t, err, m.ID, what)
			if m.ID == second.ID {
				_, err = backup.Run(t.Context(), from.source(), to.bucket, to.settings, func(int64) {})
				require.ErrorContains(t, err, m.ID, what)
			}
		}
		to.overwrite(path(m), whole)
	}
	require.Len(t, to.ids(), 2)

	// Backups of earlier versions have no signatures: they are kept with their parents, and not
	// continued.
	for _, m := range []backup.Manifest{first, second} {
		body, _, _ := strings.Cut(string(testutil.ReadFile(t, path(m))), "\n")
		to.overwrite(path(m), body+"\n")
	}
	require.Empty(t, to.prune(from, backup.Retention{Newest: 1}).Removed)
	third := to.backup(from)
	require.Empty(t, third.Parent)
	require.Equal(t, uint64(1), third.Events[0].First)
	require.Equal(t, []string{first.ID, second.ID}, to.prune(from, backup.Retention{Newest: 1}).Removed)
	_, restored, err = to.restore(backup.RestoreSettings{Key: key})
	require.NoError(t, err)
	require.Empty(t, restored.Missing)
	require.Equal(t, from.world.Position(), restored.Position)
}

// contents returns the contents of all objects and manifests of a target by their keys.
func (to *target) contents() map[string]string {
	all := map[string]string{}
	for _, key := range to.objects() {
		all[key] = string(testutil.ReadFile(to, filepath.Join(to.dir, key)))
	}
	return all
}

// TestLimitOfManifests prunes backups whose full manifest would exceed the limit of a manifest,
// which a restore refuses to read. Prune changes nothing.
func TestLimitOfManifests(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	for range 3 {
		m := to.backup(from)
		for len(m.Events) < 50_000 {
			m.Events = append(m.Events, backup.Segment{First: 1, Last: 2, Object: backup.Object{
				Key: strings.Repeat("k", 50), SHA256: strings.Repeat("0", 64)}})
		}
		require.NoError(t, backup.PutManifest(t.Context(), to.bucket, from.signer(), &m))
	}
	before := to.contents()
	require.Len(t, to.prune(from, backup.Retention{Newest: 3}).Kept, 3)
	_, err := backup.Prune(t.Context(), to.bucket, from.source(), backup.Retention{Newest: 1})
	require.ErrorContains(t, err, "the limit is 16777216")
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.Equal(t, before, to.contents())
}

// TestPruneRefusesOtherLogs adds a backup of another log that has the installation's signature.
func TestPruneRefusesOtherLogs(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	to.backup(from)
	other := to.backup(from)
	other.Log = "another"
	require.NoError(t, backup.PutManifest(t.Context(), to.bucket, from.signer(), &other))
	to.backupFails(from, "backups of another installation")
	before := to.contents()
	_, err := backup.Prune(t.Context(), to.bucket, from.source(), backup.Retention{Newest: 1})
	require.ErrorContains(t, err, "backups of another installation")
	require.Equal(t, before, to.contents())
}

func (to *target) backupFails(from *installation, message string) {
	to.Helper()
	_, err := backup.Run(to.Context(), from.source(), to.bucket, to.settings, func(int64) {})
	require.ErrorContains(to, err, message)
}

// TestUnsignedManifestsDoNotCount adds unsigned manifests before and after two signed ones. Those
// before do not push out a signed one, and Prune refuses the one after.
func TestUnsignedManifestsDoNotCount(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	var all []backup.Manifest
	for range 4 {
		all = append(all, to.backup(from))
	}
	unsign := func(m backup.Manifest) {
		path := filepath.Join(to.dir, "manifests", m.ID+".json")
		body, _, _ := strings.Cut(string(testutil.ReadFile(t, path)), "\n")
		body = strings.Replace(body, `"parent":"`+m.Parent+`",`, "", 1)
		to.overwrite(path, body+"\n")
	}
	unsign(all[3])
	before := to.contents()
	_, err := backup.Prune(t.Context(), to.bucket, from.source(), backup.Retention{Newest: 1})
	require.ErrorContains(t, err, "the manifest of backup "+all[3].ID+" is not signed, but the manifest of the "+
		"earlier backup "+
		all[2].ID)
	require.Equal(t, before, to.contents())
	require.NoError(t, to.bucket.Delete(t.Context(), "manifests/"+all[3].ID+".json"))

	fifth := to.backup(from)
	require.Equal(t, all[2].ID, fifth.Parent)
	require.NoError(t, to.bucket.Delete(t.Context(), "manifests/"+all[0].ID+".json"))
	all[2].Parent = ""
	require.NoError(t, backup.PutManifest(t.Context(), to.bucket, from.signer(), &all[2]))
	unsign(all[1])
	pruned := to.prune(from, backup.Retention{Newest: 2})
	require.Equal(t, []string{all[2].ID, fifth.ID}, pruned.Kept)
	require.Equal(t, []string{all[1].ID}, pruned.Removed)

	middle := to.backup(from) // an unsigned one between two signed ones
	last := to.backup(from)
	last.Parent = fifth.ID
	require.NoError(t, backup.PutManifest(t.Context(), to.bucket, from.signer(), &last))
	unsign(middle)
	require.Equal(t, []string{fifth.ID, last.ID}, to.prune(from, backup.Retention{Newest: 2}).Kept)
}

func TestPruneByTime(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	all := fourBackups(from, to)
	require.Equal(t, []string{all[3].ID}, to.prune(from, backup.Retention{Since: time.Now().Add(time.Hour)}).Kept)
	require.Empty(t, slices.DeleteFunc(to.ids(), func(id string) bool { return id == all[3].ID }))
	empty := newTarget(t)
	require.Zero(t, empty.prune(from, backup.Retention{Newest: 1}))
}
