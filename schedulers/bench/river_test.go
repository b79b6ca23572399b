package bench

import (
	"context"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/stretchr/testify/require"
)

type noop struct {
	Number int64 `json:"number"`
}

func (noop) Kind() string { return "noop" }

type worker struct{ river.WorkerDefaults[noop] }

func (worker) Work(context.Context, *river.Job[noop]) error { return nil }

// riverQueue is River on a PostgreSQL server of this test.
type riverQueue struct {
	*waiters
	client *river.Client[pgx.Tx]
}

// newRiver starts PostgreSQL with its default, durable settings, and a River client with the
// settings of River's own benchmark. It skips the test if PostgreSQL is not installed.
func newRiver(t *testing.T) *riverQueue {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, postgres(t))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	require.NoError(t, err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	require.NoError(t, err)
	workers := river.NewWorkers()
	river.AddWorker(workers, worker{})
	client, err := river.NewClient(driver, &river.Config{Workers: workers, FetchCooldown: 2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}}})
	require.NoError(t, err)
	q := &riverQueue{newWaiters(), client}
	events, cancel := client.SubscribeConfig(&river.SubscribeConfig{ChanSize: 1 << 16,
		Kinds: []river.EventKind{river.EventKindJobCompleted}})
	require.NoError(t, client.Start(ctx))
	t.Cleanup(func() {
		_ = client.Stop(ctx)
		cancel()
	})
	go func() {
		for e := range events {
			number, err := strconv.ParseInt(string(e.Job.EncodedArgs[len(`{"number": `):len(e.Job.EncodedArgs)-1]), 10, 64)
			if err == nil {
				q.complete(number)
			}
		}
	}()
	return q
}

func (q *riverQueue) create(number int64) error {
	_, err := q.client.Insert(context.Background(), noop{number}, nil)
	return err
}

// postgres starts a PostgreSQL server, and returns the URL of its database.
func postgres(t *testing.T) string {
	bin := ""
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), glob("/usr/lib/postgresql/*/bin")...) {
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err == nil {
			bin = dir
		}
	}
	if bin == "" {
		t.Skip("PostgreSQL is not installed: install the package postgresql")
	}
	dir, err := os.MkdirTemp("", "anneal-postgres-*")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	attributes := &syscall.SysProcAttr{}
	if os.Getuid() == 0 { // PostgreSQL refuses to run as root
		nobody, err := user.Lookup("postgres")
		require.NoError(t, err)
		uid, _ := strconv.Atoi(nobody.Uid)
		gid, _ := strconv.Atoi(nobody.Gid)
		require.NoError(t, os.Chown(dir, uid, gid))
		attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	data := filepath.Join(dir, "data")
	run := func(name string, args ...string) *exec.Cmd {
		command := exec.Command(filepath.Join(bin, name), args...)
		command.SysProcAttr, command.Dir = attributes, dir
		return command
	}
	out, err := run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8").CombinedOutput()
	require.NoError(t, err, string(out))
	server := run("postgres", "-D", data, "-k", dir, "-c", "listen_addresses=")
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGINT)
		_ = server.Wait()
	})
	url := "postgres://postgres@/postgres?host=" + dir + "&pool_max_conns=40"
	require.Eventually(t, func() bool {
		conn, err := pgx.Connect(context.Background(), "postgres://postgres@/postgres?host="+dir)
		if err == nil {
			_ = conn.Close(context.Background())
		}
		return err == nil
	}, 30*time.Second, 100*time.Millisecond)
	return url
}

func glob(pattern string) []string {
	found, _ := filepath.Glob(pattern)
	return found
}
