package backup_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/internal/backup"
	"anneal/internal/datadir"
)

// TestScheduledBackupsWaitForPrune checks that a scheduled backup that finds a prune running tries
// again after a minute, and after another failure only after the interval.
func TestScheduledBackupsWaitForPrune(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var failures []string
		logger := slog.New(slog.NewTextHandler(writerFunc(func(line []byte) (int, error) {
			_, text, _ := strings.Cut(string(line), "error=")
			failures = append(failures, time.Since(began).String()+" "+text)
			return len(line), nil
		}), nil))
		s, err := backup.NewService(backup.Source{Dir: datadir.Dir(t.TempDir()), Logger: logger}, nil)
		require.NoError(t, err)
		s.SetPruning("/mnt/backups")
		ctx, stop := context.WithCancel(t.Context())
		go func() { _ = s.RunEvery(ctx, "/mnt/other", backup.Settings{}, time.Hour) }()
		time.AfterFunc(90*time.Second, func() { s.SetPruning("") })
		time.AfterFunc(3*time.Hour, stop)
		<-ctx.Done()
		synctest.Wait()
		for n, begin := range []string{"0s \"old backups are being removed from /mnt/backups",
			"1m0s \"old backups are being removed from /mnt/backups", "2m0s \"recipients: ", "1h2m0s \"recipients: "} {
			require.Greater(t, len(failures), n)
			require.True(t, strings.HasPrefix(failures[n], begin), failures[n])
		}
	})
}

// TestTargetsThatChangeDuringABackup removes and adds manifests while a backup runs: it fails
// without a manifest, and the next one completes.
func TestTargetsThatChangeDuringABackup(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	to.backup(from)
	last := to.backup(from)
	for what, change := range map[string]func(){
		"which this backup continues, was removed": func() {
			require.NoError(t, to.bucket.Delete(t.Context(), "manifests/"+last.ID+".json"))
		},
		"another server added backup ": func() { last = to.backup(from) },
	} {
		from.create(len(to.ids()) + 10*int(from.world.Position()))
		ids, changed := to.ids(), false
		_, err := backup.Run(t.Context(), from.source(), to.bucket, to.settings, func(int64) {
			if !changed {
				changed = true
				change()
			}
		})
		require.True(t, changed)
		require.ErrorContains(t, err, what)
		require.NotEqual(t, ids, to.ids())
		last = to.backup(from)
		_, restored, err := to.restore(backup.RestoreSettings{})
		require.NoError(t, err)
		require.Equal(t, last.ID, restored.Backup)
	}
	future := last
	future.ID = "20990101T000000.000000Z"
	require.NoError(t, backup.PutManifest(t.Context(), to.bucket, from.signer(), &future))
	to.backupFails(from, "is newer than the clock of this machine")
}

// writerFunc is a writer whose Write is a function; a test reads the lines of a log with it.
type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }
