package backup_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/idempotency"
	"anneal/eventlog/metering"
	"anneal/eventlog/servertest"
	"anneal/eventlog/streamcopy"
	"anneal/internal/backup"
	"anneal/internal/datadir"
)

// backupDuring makes a backup, and calls change after it has copied its first file.
func (to *target) backupDuring(from *installation, change func()) backup.Manifest {
	to.Helper()
	changed := false
	m, err := backup.Run(context.Background(), from.source(), to.bucket, to.settings, func(int64) {
		if !changed {
			changed = true
			change()
		}
	})
	require.NoError(to, err)
	require.True(to, changed)
	return m
}

// TestTimeOfABackup records events while a backup copies files. A restore to their time never uses
// this backup, which lacks them.
func TestTimeOfABackup(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	from.create(1)
	var at time.Time
	first := to.backupDuring(from, func() {
		from.create(2)
		at = time.Now()
	})
	require.Less(t, first.Position, from.world.Position())
	require.True(t, first.Time.Before(at))
	require.False(t, first.EventTime.After(first.Time))
	_, _, err := to.restore(backup.RestoreSettings{Time: at})
	require.Equal(t, domain.OutOfRange, domain.CodeOf(err))

	position := from.world.Position()
	from.create(3)
	second := to.backup(from)
	dir, restored, err := to.restore(backup.RestoreSettings{Time: at})
	require.NoError(t, err)
	require.Equal(t, second.ID, restored.Backup)
	require.Equal(t, position, restored.Position)
	open(t, dir).check(1, 2)
	_, restored, err = to.restore(backup.RestoreSettings{Time: first.EventTime.Add(-1)})
	require.NoError(t, err)
	require.Equal(t, first.ID, restored.Backup, "it has an event after that time")
	_, restored, err = to.restore(backup.RestoreSettings{Time: second.Time})
	require.NoError(t, err)
	require.Equal(t, second.Checkpoint, restored.Checkpoint)
}

// TestEventsThatAreRecordedLate records an event after a backup whose time is before that of the
// backup, as by a control plane with another clock. A restore to the time of the backup has the
// event.
func TestEventsThatAreRecordedLate(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	from.create(1)
	first := to.backup(from)
	require.True(t, first.EventTime.Before(first.Time))
	from.doAt(first.Time, domain.Intend(domain.Accounts, "accounts/late", domain.CreateAccount{
		AccountSpec: domain.AccountSpec{DisplayName: "A", AccountType: domain.Enterprise}}))
	late := from.world.Position()
	from.create(2)
	second := to.backup(from)
	_, restored, err := to.restore(backup.RestoreSettings{Time: first.Time})
	require.NoError(t, err)
	require.Equal(t, second.ID, restored.Backup)
	require.Equal(t, late, restored.Position)
}

// TestTimesOfEarlierVersions gives manifests the times that earlier versions of anneal wrote, which
// are later than the state: a restore to a time within the backup then uses the next one, and is
// out of range for the newest one.
func TestTimesOfEarlierVersions(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	from.create(1)
	var at time.Time
	earlier := func(m backup.Manifest) {
		m.Time, m.EventTime = time.Now().UTC(), time.Time{}
		require.NoError(t, backup.PutManifest(t.Context(), to.bucket, from.signer(), &m))
	}
	earlier(to.backupDuring(from, func() {
		from.create(2)
		at = time.Now()
	}))
	position := from.world.Position()
	_, _, err := to.restore(backup.RestoreSettings{Time: at})
	require.Equal(t, domain.OutOfRange, domain.CodeOf(err))
	second := to.backup(from)
	earlier(second)
	_, restored, err := to.restore(backup.RestoreSettings{Time: at})
	require.NoError(t, err)
	require.Equal(t, second.ID, restored.Backup)
	require.Equal(t, position, restored.Position)
}

// claim executes a request with an idempotency key, and stores its response, as the API does.
func (i *installation) claim(key string, since time.Time, request func() (position uint64)) {
	i.Helper()
	claim, err := i.answers.Claim(context.Background(), key, []byte("digest"), since, time.Minute)
	require.NoError(i, err)
	require.Equal(i, idempotency.Fresh, claim.State, key)
	claim.Position = request()
	require.NoError(i, i.answers.Store(context.Background(), claim, []byte("response of "+key)))
}

// repeat returns what a repetition of the request with an idempotency key finds.
func (i *installation) repeat(key string) idempotency.ClaimState {
	i.Helper()
	claim, err := i.answers.Claim(context.Background(), key, []byte("digest"), time.Now(), time.Minute)
	require.NoError(i, err)
	return claim.State
}

// TestResponsesOfTheRestoredPosition makes requests with idempotency keys before, during and after
// a backup. After a restore to any position, a repetition of a request whose events the log lacks
// is executed again with its seed, and one whose events it has is not.
func TestResponsesOfTheRestoredPosition(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	request := func(n int) func() uint64 {
		return func() uint64 {
			from.create(n)
			return from.world.Position()
		}
	}
	now := time.Now()
	from.claim("acme.before", now, request(1))
	old := func() uint64 { return 0 } // of an earlier version, whose records have no position
	from.claim("acme.old", now, old)
	from.claim("acme.older", now.Add(-time.Hour), old)
	first := to.backupDuring(from, func() {
		from.claim("acme.during", time.Now(), request(2))
		from.claim("acme.quiet", time.Now(), func() uint64 { return from.world.Position() })
	})
	between := from.world.Position()
	from.claim("acme.after", time.Now(), request(3))
	to.backup(from)

	for position, want := range map[uint64]map[string]idempotency.ClaimState{
		first.Position: {"acme.during": idempotency.Resumed, "acme.quiet": idempotency.Resumed,
			"acme.after": idempotency.Fresh},
		between: {"acme.during": idempotency.Completed, "acme.quiet": idempotency.Completed,
			"acme.after": idempotency.Resumed},
		from.world.Position(): {"acme.during": idempotency.Completed, "acme.quiet": idempotency.Completed,
			"acme.after": idempotency.Completed},
	} {
		want["acme.before"], want["acme.old"], want["acme.older"] = idempotency.Completed, idempotency.Resumed,
			idempotency.Completed
		dir, restored, err := to.restore(backup.RestoreSettings{Position: position})
		require.NoError(t, err)
		require.Equal(t, position, restored.Position)
		again := open(t, dir)
		for key, state := range want {
			require.Equal(t, state, again.repeat(key), "%s at position %d", key, position)
		}
	}

	_, err := backup.Prune(t.Context(), to.bucket, from.source(), backup.Retention{Newest: 1})
	require.NoError(t, err)
	dir, _, err := to.restore(backup.RestoreSettings{})
	require.NoError(t, err)
	require.Equal(t, idempotency.Completed, open(t, dir).repeat("acme.after"))
	_, err = to.bucket.Size(t.Context(), first.Answers.Key)
	require.Equal(t, domain.NotFound, domain.CodeOf(err))
}

// TestResponsesOfEarlierVersions restores a backup whose secrets have the records of the
// idempotency store, as those of earlier versions.
func TestResponsesOfEarlierVersions(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	from.claim("acme.key", time.Now(), from.world.Position)
	record, _, err := from.answers.Records().Get(t.Context(), "acme.key")
	require.NoError(t, err)
	m := to.backup(from)
	all := to.secretsOf(m)
	require.NotContains(t, all, "answers")
	all["answers"] = map[string][]byte{"acme.key": record}
	content := to.encrypt(all, 0)
	to.overwrite(filepath.Join(to.dir, m.Secrets.Key), content)
	sum := sha256.Sum256([]byte(content))
	m.Secrets.Size, m.Secrets.SHA256, m.Answers = int64(len(content)), hex.EncodeToString(sum[:]), nil
	require.NoError(t, backup.PutManifest(t.Context(), to.bucket, from.signer(), &m))
	dir, _, err := to.restore(backup.RestoreSettings{})
	require.NoError(t, err)
	require.Equal(t, idempotency.Completed, open(t, dir).repeat("acme.key"))
}

// usageIDs returns the IDs of the usage records, in the order of the stream.
func usageIDs(t testing.TB, nc *nats.Conn) (ids []string) {
	t.Helper()
	last, err := streamcopy.Last(t.Context(), nc, metering.Stream)
	require.NoError(t, err)
	for m, err := range streamcopy.Read(t.Context(), nc, metering.Stream, 0, last) {
		require.NoError(t, err)
		ids = append(ids, eventlog.HeaderValue(m.Header, eventlog.HeaderID))
	}
	return ids
}

const expiry = 100 * time.Millisecond // the minimum of the NATS server

// expireUsage lets usage records expire, until a number of them is left, by a temporary limit of
// their stream.
func (i *installation) expireUsage(limit func(*jetstream.StreamConfig), left uint64) {
	i.Helper()
	js := servertest.JetStream(i, i.server.Control())
	stream, err := js.Stream(i.Context(), metering.Stream)
	require.NoError(i, err)
	usual := stream.CachedInfo().Config
	limited := usual
	limit(&limited)
	_, err = js.UpdateStream(i.Context(), limited)
	require.NoError(i, err)
	require.Eventually(i, func() bool {
		info, err := stream.Info(i.Context())
		return err == nil && info.State.Msgs == left
	}, time.Minute, expiry/10)
	_, err = js.UpdateStream(i.Context(), usual)
	require.NoError(i, err)
}

// TestUsageAfterARestore restores an installation, and backs up the restored one to the same
// target, twice. Its usage stream has other sequences than the earlier one: whether it then has
// fewer or more records than the last backup had, a second restore has each record once.
func TestUsageAfterARestore(t *testing.T) {
	for more, what := range map[int]string{0: "fewer", 5: "more"} {
		t.Run(what, func(t *testing.T) {
			from, to := newInstallation(t), newTarget(t)
			from.meter(2)
			to.backup(from)
			from.meter(3)
			from.expireUsage(func(c *jetstream.StreamConfig) { c.MaxMsgs = 2 }, 2)
			before := to.backup(from)
			require.EqualValues(t, 5, before.UsageLast)
			dir, _, err := to.restore(backup.RestoreSettings{})
			require.NoError(t, err)
			again := open(t, dir)
			want := usageIDs(t, again.server.Control())
			require.Len(t, want, 4, "the 2 records of the first backup, and the newest 2 of 3")
			again.create(1) // so that the restored log continues that of the last backup
			again.meter(more)
			first := to.backup(again)
			require.Equal(t, before.ID, first.Parent)
			require.True(t, first.UsageComplete)
			again.meter(1)
			second := to.backup(again)
			require.False(t, second.UsageComplete)
			want = usageIDs(t, again.server.Control())
			require.Len(t, want, 4+more+1)
			require.Len(t, slices.Compact(slices.Sorted(slices.Values(want))), len(want))

			dir, _, err = to.restore(backup.RestoreSettings{})
			require.NoError(t, err)
			require.Equal(t, want, usageIDs(t, open(t, dir).server.Control()))
			_, err = backup.Prune(t.Context(), to.bucket, again.source(), backup.Retention{Newest: 1})
			require.NoError(t, err)
			dir, _, err = to.restore(backup.RestoreSettings{})
			require.NoError(t, err)
			require.Equal(t, want, usageIDs(t, open(t, dir).server.Control()), "after the parents were removed")
		})
	}
}

// TestBackupsAfterAllUsageHasExpired backs up an installation whose usage records have all expired,
// although its usage stream still states the sequence of the newest one.
func TestBackupsAfterAllUsageHasExpired(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	from.meter(3)
	from.expireUsage(func(c *jetstream.StreamConfig) { c.MaxAge, c.Duplicates = expiry, expiry }, 0)
	m := to.backup(from)
	require.Empty(t, m.Usage)
	require.EqualValues(t, 3, m.UsageLast)
	from.meter(1)
	require.Len(t, to.backup(from).Usage, 1)
}

// TestRestoresAtTheSameTime starts a restore while another one to the same directory runs, at each
// of its steps, and checks that it changes nothing.
func TestRestoresAtTheSameTime(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	from.create(1)
	to.backup(from)
	dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
	settings := backup.RestoreSettings{Identities: to.identity, Logger: slog.New(slog.DiscardHandler)}
	other, refused := settings, 0
	settings.Progress = func(string) {
		_, err := backup.Restore(t.Context(), to.bucket, dir+"/", other)
		require.ErrorContains(t, err, "is in use by process", "the lock of the first")
		refused++
	}
	_, err := backup.Restore(t.Context(), to.bucket, dir, settings)
	require.NoError(t, err)
	require.Equal(t, 5, refused)
	open(t, dir).check(1)
	_, err = backup.Restore(t.Context(), to.bucket, dir, other)
	require.ErrorContains(t, err, "is not empty")
}

// TestPathsOfRestoredDirectories restores to directories whose paths are not clean.
func TestPathsOfRestoredDirectories(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	from.create(1)
	to.backup(from)
	for n, path := range []string{"%s/", "%s//", "%s/.", "%s/x/..", "existing%s/", "."} {
		base := t.TempDir()
		t.Chdir(base)
		if n >= 4 {
			require.NoError(t, os.MkdirAll(fmt.Sprintf("existing%s", "data"), 0o700))
		}
		if path == "." {
			t.Chdir(filepath.Join(base, "existingdata"))
		} else {
			path = fmt.Sprintf(path, "data")
		}
		want, err := filepath.Abs(path)
		require.NoError(t, err)
		_, err = backup.Restore(t.Context(), to.bucket, datadir.Dir(path), backup.RestoreSettings{Identities: to.identity,
			Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err, path)
		require.FileExists(t, filepath.Join(want, "keys", "pepper"))
		entries, err := os.ReadDir(filepath.Dir(want))
		require.NoError(t, err)
		require.Len(t, entries, 1, "no temporary directory remains")
	}
}
