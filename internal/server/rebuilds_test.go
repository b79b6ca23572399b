package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/rest"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/internal/datadir"
	"anneal/internal/testutil"
	"anneal/projections"
)

// falsify replaces a text in the newest snapshot of a directory, whose checksum it computes again.
func falsify(t *testing.T, dir datadir.Dir, before, after string) {
	t.Helper()
	paths := testutil.Glob(t, dir.Path("snapshots", "snapshot-*"))
	path := slices.Max(paths)
	content := testutil.ReadFile(t, path)
	end := bytes.LastIndex(content, []byte(`{"digest":`))
	rows, footer := content[:end], content[end:]
	require.Contains(t, string(rows), before)
	was := sha256.Sum256(rows)
	rows = bytes.ReplaceAll(rows, []byte(before), []byte(after))
	is := sha256.Sum256(rows)
	footer = bytes.ReplaceAll(footer, []byte(hex.EncodeToString(was[:])), []byte(hex.EncodeToString(is[:])))
	require.NoError(t, os.WriteFile(path, slices.Concat(rows, footer), 0o600))
}

// rebuild runs a rebuild and returns its record.
func rebuild(t *testing.T, r *rebuilds) rest.Rebuild {
	t.Helper()
	ended, start := make(chan struct{}), r.run
	r.run = func(run func(context.Context) error) {
		start(func(ctx context.Context) error {
			defer close(ended)
			return run(ctx)
		})
	}
	defer func() { r.run = start }()
	one, err := r.Start()
	require.NoError(t, err)
	<-ended
	done := r.All()[0]
	require.Equal(t, one.ID, done.ID)
	return done
}

// TestRebuildRepairsAFalseSnapshot starts a server from a snapshot with a wrong row. The rebuild names the
// resource and serves the state of the log, also at earlier positions after the next start.
func TestRebuildRepairsAFalseSnapshot(t *testing.T) {
	dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
	const acme = "accounts/acme"
	require.NoError(t, serving(t, string(dir), func(ctx context.Context, s *Server) {
		require.NoError(t, bootstrapDo(ctx, s, domain.Accounts, acme,
			domain.CreateAccount{AccountSpec: domain.AccountSpec{DisplayName: "Right name", AccountType: domain.Enterprise}}))
	}))
	falsify(t, dir, "Right name", "Wrong name")
	name := func(v *projections.View) string {
		row, ok := v.Accounts.Get(acme)
		require.True(t, ok)
		return row.State.DisplayName
	}
	var found rest.Rebuild
	require.NoError(t, serving(t, string(dir), func(ctx context.Context, s *Server) {
		require.Equal(t, "Wrong name", name(s.world.View()))
		held := s.world.View()
		found = rebuild(t, s.rebuilds)
		require.Equal(t, rest.RebuildCompleted, found.State, "%+v", found.Status)
		require.Equal(t, []projections.Difference{{Name: acme, Kind: projections.DiffersChanged}}, found.Differences)
		require.Equal(t, 1, found.DifferenceCount)
		require.NotEqual(t, found.Served.SHA256, found.Folded.SHA256)
		for collection, table := range found.Folded.Tables {
			require.Equal(t, collection != "accounts", table == found.Served.Tables[collection], collection)
		}
		require.Equal(t, "Right name", name(s.world.View()))
		require.Equal(t, "Wrong name", name(held), "views do not change")
		require.FileExists(t, dir.Path(staleArchive))

		again := rebuild(t, s.rebuilds)
		require.Equal(t, rest.RebuildCompleted, again.State)
		require.Zero(t, again.DifferenceCount)
		require.Equal(t, again.Served, again.Folded)
	}))
	for _, path := range testutil.Glob(t, dir.Path("snapshots", "snapshot-*")) {
		require.NotContains(t, string(testutil.ReadFile(t, path)), "Wrong name")
	}
	require.NoError(t, serving(t, string(dir), func(ctx context.Context, s *Server) {
		require.NoFileExists(t, dir.Path(staleArchive))
		last, _ := s.archive.Last()
		require.GreaterOrEqual(t, last, found.Folded.Position, "the archive was written again")
		require.Equal(t, "Right name", name(s.world.View()))
		require.Equal(t, found, s.rebuilds.All()[1], "the results are kept")
	}))
}

// TestRebuildThatIsNotComparedReplacesFiles checks that a rebuild that has replaced a wrong state, but
// was cancelled before it knew that it was wrong, replaces the snapshots and the archive as well.
func TestRebuildThatIsNotComparedReplacesFiles(t *testing.T) {
	dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
	const acme = "accounts/acme"
	require.NoError(t, serving(t, string(dir), func(ctx context.Context, s *Server) {
		require.NoError(t, bootstrapDo(ctx, s, domain.Accounts, acme,
			domain.CreateAccount{AccountSpec: domain.AccountSpec{DisplayName: "Right name", AccountType: domain.Enterprise}}))
	}))
	falsify(t, dir, "Right name", "Wrong name")
	require.NoError(t, serving(t, string(dir), func(ctx context.Context, s *Server) {
		s.rebuilds.rebuild = func(ctx context.Context, w *projections.World, log projections.Reader,
			progress func(folded, end uint64)) (projections.Comparison, error) {
			c, err := projections.Rebuild(ctx, w, log, progress)
			require.NoError(t, err)
			return projections.Comparison{}, &projections.NotComparedError{Position: c.Folded.Position, Err: context.Canceled}
		}
		found := rebuild(t, s.rebuilds)
		require.Equal(t, rest.RebuildFailed, found.State)
		require.Contains(t, found.Status.Message, "was replaced at position")
		require.FileExists(t, dir.Path(staleArchive))
		for _, path := range testutil.Glob(t, dir.Path("snapshots", "snapshot-*")) {
			require.NotContains(t, string(testutil.ReadFile(t, path)), "Wrong name")
		}
	}))
}

// A slowLog calls between before it yields each event.
type slowLog struct {
	eventlog.Log
	between func() error
}

func (l slowLog) Read(ctx context.Context, filter string, after uint64) iter.Seq2[eventlog.Event, error] {
	return func(yield func(eventlog.Event, error) bool) {
		for e, err := range l.Log.Read(ctx, filter, after) {
			if err == nil {
				err = l.between()
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// TestRebuildsThatEndEarly checks that a cancelled and a failed rebuild are recorded and change nothing,
// that only one runs at a time, and what is recorded when the server stops.
func TestRebuildsThatEndEarly(t *testing.T) {
	log, world := eventlog.NewMemory(), projections.NewWorld()
	for _, id := range []string{"a", "b"} {
		record, err := domain.Accounts.Encode(domain.AccountCreated{AccountSpec: domain.AccountSpec{DisplayName: id}})
		require.NoError(t, err)
		_, err = log.Append(t.Context(), eventlog.Write{Event: eventlog.Event{Record: record, ID: "e" + id,
			Name: domain.NewName("", "accounts", id)}})
		require.NoError(t, err)
	}
	for e, err := range log.Read(t.Context(), "events.>", 0) {
		require.NoError(t, err)
		require.NoError(t, world.Apply(e))
	}
	reached, release := make(chan struct{}, 2), make(chan error)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	dir := datadir.Dir(t.TempDir())
	open := func(ctx context.Context) *rebuilds {
		r, err := newRebuilds(&rebuilds{world: world, dir: dir, logger: slog.New(slog.DiscardHandler),
			rebuild: projections.Rebuild,
			log:     slowLog{log, func() error { reached <- struct{}{}; return <-release }},
			run:     func(run func(context.Context) error) { running.Go(func() { _ = run(ctx) }) }})
		require.NoError(t, err)
		return r
	}
	r := open(ctx)
	before, err := world.View().Digest()
	require.NoError(t, err)
	ended := func(state string) rest.Rebuild {
		running.Wait()
		digest, err := world.View().Digest()
		require.NoError(t, err)
		require.Equal(t, before, digest)
		require.Equal(t, state, r.All()[0].State)
		return r.All()[0]
	}

	one, err := r.Start()
	require.NoError(t, err)
	<-reached
	_, err = r.Start()
	require.ErrorContains(t, err, "rebuild "+one.ID+" is running")
	_, err = r.Cancel("r1")
	require.Equal(t, domain.NotFound, domain.CodeOf(err))
	_, err = r.Cancel(one.ID)
	require.NoError(t, err)
	_, err = r.Cancel(one.ID)
	require.NoError(t, err, "a second time")
	release <- context.Canceled
	require.Equal(t, domain.Canceled.String(), ended(rest.RebuildCancelled).Status.Code)
	_, err = r.Cancel(one.ID)
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))

	_, err = r.Start()
	require.NoError(t, err)
	<-reached
	release <- errors.New("the disk is damaged")
	require.Contains(t, ended(rest.RebuildFailed).Status.Message, "the disk is damaged")

	_, err = r.Start()
	require.NoError(t, err)
	<-reached
	killed := open(ctx) // as after kill -9, which leaves the record of a running rebuild
	require.Equal(t, rest.RebuildFailed, killed.All()[0].State)
	require.Equal(t, domain.Aborted.String(), killed.All()[0].Status.Code)
	stop()
	release <- context.Canceled
	ended(rest.RebuildFailed)
	require.Len(t, r.All(), 3)
}
