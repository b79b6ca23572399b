package backup_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog"
	installations "anneal/eventlog/installation"
	"anneal/eventlog/metering"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/secrets"
	"anneal/eventlog/servertest"
	"anneal/eventlog/streamcopy"
	"anneal/internal/backup"
	"anneal/internal/datadir"
	"anneal/internal/testutil"
	"anneal/projections"
)

// A restoredCluster restores the backups of a target to a NATS cluster, whose streams it deletes
// before each first attempt.
type restoredCluster struct {
	testing.TB
	*target
	options natsserver.ConnectOptions
	dir     datadir.Dir
	bucket  string
}

func (c *restoredCluster) clear() {
	c.Helper()
	for _, user := range []string{"control", "keeper"} {
		nc, err := nats.Connect(c.options.URL, nats.UserInfo(user, c.options.Password))
		require.NoError(c, err)
		js := servertest.JetStream(c, nc)
		require.NoError(c, eventlog.Retry(c.Context(), func(ctx context.Context) error { // until there is a leader
			names := js.StreamNames(ctx)
			for name := range names.Name() {
				if err := js.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
					return err
				}
			}
			return names.Err()
		}))
		nc.Close()
	}
	base := c.TempDir()
	c.dir, c.bucket = datadir.Dir(filepath.Join(base, "data")), "file://"+filepath.Join(base, "bucket")
}

// run restores the newest backup. If cuts is not nil, it is killed after the effect that cuts
// counts.
func (c *restoredCluster) run(cuts *cutter) (backup.Restored, error) {
	c.Helper()
	s := backup.RestoreSettings{Identities: c.identity, Logger: slog.New(slog.DiscardHandler), Bucket: c.bucket}
	options, ctx := c.options, c.Context()
	if cuts != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		options.URL = cuts.begin(c, strings.TrimPrefix(options.URL, "nats://"), cancel)
		defer cuts.end()
		s.Intercept(cuts.intercept)
	}
	s.Cluster = &options
	return backup.Restore(ctx, c.target.bucket, c.dir, s)
}

func (c *restoredCluster) connect() *natsserver.Connection {
	c.Helper()
	conn, err := natsserver.Connect(c.Context(), c.options)
	require.NoError(c, err)
	c.Cleanup(conn.Close)
	return conn
}

// admits returns whether a control plane with the keys of from can join: never before the cluster
// has everything.
func (c *restoredCluster) admits(from *installation) bool {
	c.Helper()
	nc, err := nats.Connect(c.options.URL, nats.UserInfo("control", c.options.Password))
	require.NoError(c, err)
	defer nc.Close()
	// The killed restore may have sent one more change of the record. This message is stored after it.
	_, _ = nc.Request("$KV.INSTALLATION.settled", nil, time.Second) // fails while there is no record
	current, own, err := from.dir.Fingerprints()
	require.NoError(c, err)
	record, ok, err := installations.Read(c.Context(), nc)
	require.NoError(c, err)
	hasLog, err := installations.HasLog(c.Context(), nc)
	require.NoError(c, err)
	if !ok {
		require.False(c, hasLog, "a log without a record, which a control plane would accept")
		return false
	}
	refused := record.Check(own, domain.EventVersion)
	if refused == nil {
		return true
	}
	require.ErrorContains(c, refused, "run the same `anneal restore` command again")
	require.ErrorContains(c, installations.Create(c.Context(), nc, 0, current, domain.EventVersion), "is not complete")
	_, err = installations.Join(c.Context(), installations.Options{Conn: nc, ID: "p", EventVersion: domain.EventVersion,
		Keys: own, Logger: slog.New(slog.DiscardHandler)})
	require.ErrorContains(c, err, "is not complete")
	require.ErrorContains(c, installations.SetKey(c.Context(), nc, "ring", "aa"), "is not complete")
	return false
}

// checkStreams requires that the streams have all events and usage records of the backup.
func (c *restoredCluster) checkStreams(m backup.Manifest, usage []string) {
	c.Helper()
	conn := c.connect()
	defer conn.Close()
	last, err := conn.Log().Last(c.Context())
	require.NoError(c, err)
	require.Equal(c, m.Checkpoint, last)
	require.Equal(c, usage, usageIn(c, conn.Control()))
}

// check requires that the cluster and the data directory have all of the backup: the resources of
// numbers, their files and secrets, and the usage records.
func (c *restoredCluster) check(m backup.Manifest, usage []string, numbers ...int) {
	c.Helper()
	c.checkStreams(m, usage)
	conn := c.connect()
	defer conn.Close()
	require.NoError(c, c.dir.CheckRestored())
	world, err := projections.Open(c.Context(), conn.Log(), c.dir.Path("snapshots"))
	require.NoError(c, err)
	ring, err := secrets.OpenKeyRing(c.dir.RingPath())
	require.NoError(c, err)
	vault, err := secrets.OpenVault(c.Context(), conn.Control(), ring)
	require.NoError(c, err)
	files, err := blobs.Open(c.Context(), blobs.Options{URL: c.bucket, BaseURL: "http://127.0.0.1:1/blobs",
		Key: make([]byte, 32)})
	require.NoError(c, err)
	(&installation{TB: c, world: world, files: files, vault: vault}).check(numbers...)
	require.NoError(c, files.Close())
	require.NoError(c, vault.Close())
}

// usageIn returns the requests of the usage records, in the order of the stream.
func usageIn(t testing.TB, nc *nats.Conn) (requests []string) {
	t.Helper()
	last, err := streamcopy.Last(t.Context(), nc, metering.Stream)
	require.NoError(t, err)
	for m, err := range streamcopy.Read(t.Context(), nc, metering.Stream, 0, last) {
		require.NoError(t, err)
		requests = append(requests, m.Header.Get("ce-correlation"))
	}
	return requests
}

// meter records the usage of a number of requests.
func (i *installation) meter(requests int) {
	i.Helper()
	meter, err := metering.NewMeter(metering.MeterOptions{Conn: i.server.Control(), Dir: i.TempDir(), ID: "cp",
		Logger: slog.New(slog.DiscardHandler)})
	require.NoError(i, err)
	for n := range requests {
		require.NoError(i, meter.Record(metering.Record{Time: time.Now(), Request: fmt.Sprint("r-", n), Account: "acme",
			Kind: metering.Chat, Key: "accounts/acme/apiKeys/k1", Deployment: "accounts/acme/deployments/d1", Complete: true}))
	}
	require.NoError(i, meter.Drain(i.Context()))
	require.NoError(i, meter.Close())
}

// TestInterruptedRestoresToAClusterContinue kills a restore to a cluster of three NATS servers
// after each of its effects on the cluster and the bucket. As long as anything is missing, no
// control plane can join. The next restore continues, and the result has everything once. Set
// ANNEAL_RESTORE_CUTS=1 for every effect; by default it is killed after every eighth.
func TestInterruptedRestoresToAClusterContinue(t *testing.T) {
	step, random := testutil.Variable(t, "ANNEAL_RESTORE_CUTS", 8), testutil.Random(t)
	from, to := newInstallation(t), newTarget(t)
	from.create(1)
	from.create(2)
	from.meter(5)
	m, usage := to.backup(from), usageIn(t, from.server.Control())
	require.Len(t, usage, 5)
	c := &restoredCluster{TB: t, target: to,
		options: servertest.StartCluster(t, filepath.Join("..", "..", "compose", "nats.conf"))}
	effects := 0
	for n := 1 + random.IntN(step); effects == 0; n += step {
		c.clear()
		cuts := &cutter{left: n}
		_, err := c.run(cuts)
		if err == nil {
			effects = n - cuts.left
			require.True(t, c.admits(from))
			c.check(m, usage, 1, 2)
			break
		}
		require.ErrorIs(t, err, context.Canceled, "after effect %d", n)
		require.NoDirExists(t, string(c.dir))
		require.Error(t, (c.dir + ".restoring").CheckRestored())
		if c.admits(from) {
			c.checkStreams(m, usage)
		}
		restored, err := c.run(nil)
		require.NoError(t, err, "continued after effect %d: %s", n, cuts.last)
		require.Equal(t, m.Checkpoint, restored.Checkpoint)
		require.Empty(t, restored.Missing)
		require.True(t, c.admits(from))
		c.check(m, usage, 1, 2)
	}
	t.Logf("%d effects", effects)
	require.Greater(t, effects, 25)
}

// TestRestoresToAClusterRefuse checks that a restore changes nothing in a cluster that has
// another installation, or the same one with another state.
func TestRestoresToAClusterRefuse(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	from.create(1)
	to.backup(from)
	c := &restoredCluster{TB: t, target: to,
		options: servertest.StartCluster(t, filepath.Join("..", "..", "compose", "nats.conf"))}
	c.clear()
	_, err := c.run(nil)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(string(c.dir)))
	c.bucket += "2"
	_, err = c.run(nil)
	require.NoError(t, err, "the directory of a complete restore can be created again")

	from.create(2)
	to.backup(from)
	require.NoError(t, os.RemoveAll(string(c.dir)))
	_, err = c.run(nil)
	require.ErrorContains(t, err, "fewer events")
	conn := c.connect()
	_, own, err := from.dir.Fingerprints()
	require.NoError(t, err)
	_, err = installations.Join(t.Context(), installations.Options{Conn: conn.Control(), ID: "p",
		EventVersion: domain.EventVersion, Keys: own, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	_, err = c.run(nil)
	require.ErrorContains(t, err, "has an installation with control planes (p)")

	stranger := newInstallation(t)
	other := &restoredCluster{TB: t, target: newTarget(t), options: c.options, dir: c.dir + "3", bucket: c.bucket + "3"}
	other.backup(stranger)
	_, err = other.run(nil)
	require.ErrorContains(t, err, "restore to an empty NATS cluster")
	c.clear()
	_, err = c.run(&cutter{left: 30})
	require.ErrorIs(t, err, context.Canceled)
	_, err = other.run(nil)
	require.ErrorContains(t, err, "incomplete restore of another installation")
	_, err = c.run(nil)
	require.NoError(t, err)
}
