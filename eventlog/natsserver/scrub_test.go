package natsserver

import (
	"anneal/eventlog"
	"anneal/eventlog/integrity"
	"anneal/eventlog/logtest"
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// Damage that appears under a running server is told, and the next start
// refuses the log.
func TestScrubTellsOfDamage(t *testing.T) {
	dir := stopped(t, 200)
	var said bytes.Buffer
	s, err := Start(Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&said, nil))})
	require.NoError(t, err)
	require.NoError(t, integrity.Scrub(t.Context(), s.dir, s.mark, s.logger))
	require.NotContains(t, said.String(), "anneal log repair")
	flip(t, filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), "1.blk"), 5_000_000)
	require.NoError(t, integrity.Scrub(t.Context(), s.dir, s.mark, s.logger))
	require.Contains(t, said.String(), "anneal log repair")
	s.Close()
	mark, err := integrity.ReadMark(integrity.MarkPath(dir))
	require.NoError(t, err)
	require.NotZero(t, mark.Damaged)
	_, err = Start(Options{Dir: dir})
	require.True(t, integrity.IsDamaged(err))
}

// The log is also read when NATS syncs each message itself.
func TestScrubWithoutADiskSync(t *testing.T) {
	dir := stopped(t, 200)
	s, err := Start(Options{Dir: dir, syncAlways: true})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	require.Empty(t, s.files.Blocks)
	require.NoError(t, integrity.Scrub(t.Context(), s.dir, s.mark, s.logger))
	require.Zero(t, s.mark.Mark().Damaged)
	flip(t, filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), "1.blk"), 5_000_000)
	require.NoError(t, integrity.Scrub(t.Context(), s.dir, s.mark, s.logger))
	require.NotZero(t, s.mark.Mark().Damaged)
}

// A newest block that the server has made and not written into is no damage.
func TestScrubOfAnEmptyNewestBlock(t *testing.T) {
	dir := stopped(t, 200)
	s, err := Start(Options{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	require.NoError(t, os.WriteFile(filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), "4.blk"), nil, 0o600))
	require.NoError(t, integrity.Scrub(t.Context(), s.dir, s.mark, s.logger))
	require.Zero(t, s.mark.Mark().Damaged)
}

// The start after a finding reads the whole log. It refuses the damage, or
// clears the finding when the log is whole.
func TestStartSettlesAFindingOfScrub(t *testing.T) {
	dir := stopped(t, 200)
	mark, err := integrity.ReadMark(integrity.MarkPath(dir))
	require.NoError(t, err)
	mark.Damaged = 1
	require.NoError(t, integrity.WriteMark(integrity.MarkPath(dir), mark))
	s, err := Start(Options{Dir: dir})
	require.NoError(t, err)
	require.Zero(t, s.mark.Mark().Damaged)
	s.Close()
	mark, err = integrity.ReadMark(integrity.MarkPath(dir))
	require.NoError(t, err)
	require.Zero(t, mark.Damaged)

	msgs := integrity.BlockDir(dir, "CONTROL", eventlog.Stream)
	flip(t, filepath.Join(msgs, "1.blk"), 5_000_000)
	found, err := integrity.VerifyFiles(dir, integrity.MarkPath(dir))
	require.NoError(t, err)
	require.Len(t, found.Missing, 1)
	require.NoError(t, integrity.WriteMark(integrity.MarkPath(dir), integrity.HighWaterMark{Damaged: found.Missing[0].First})) // behind the mark
	_, err = Start(Options{Dir: dir})
	require.True(t, integrity.IsDamaged(err), "%v", err)
}

// A control plane of a cluster has a mark of its own, and refuses a log that
// holds less or something else than it has seen.
func TestEachControlPlaneKeepsAMark(t *testing.T) {
	s := start(t)
	for _, id := range []string{"a", "b"} {
		_, err := s.Log().Append(t.Context(), logtest.Write(id, 0))
		require.NoError(t, err)
	}
	path := filepath.Join(t.TempDir(), "log.mark")
	log, err := eventlog.NewJetStream(s.control)
	require.NoError(t, err)
	c := &Connection{control: s.control, keeper: s.keeper, log: log}
	require.NoError(t, c.keepMark(t.Context(), path))
	_, err = s.Log().Append(t.Context(), logtest.Write("c", 0))
	require.NoError(t, err)
	require.Len(t, idsOf(t, &Server{Connection: c}), 3)
	require.NoError(t, c.mark.Close(integrity.Hash{}))
	mark, err := integrity.ReadMark(path)
	require.NoError(t, err)
	require.Equal(t, uint64(3), mark.Position)

	require.NoError(t, c.keepMark(t.Context(), path), "the same log")
	require.NoError(t, c.mark.Close(integrity.Hash{}))
	for _, other := range []func(*integrity.HighWaterMark){
		func(m *integrity.HighWaterMark) { m.Hash[0] ^= 1 },
		func(m *integrity.HighWaterMark) { m.EventID = "another" },
		func(m *integrity.HighWaterMark) { m.Durable = 4 },
	} {
		wrong := mark
		other(&wrong)
		require.NoError(t, integrity.WriteMark(path, wrong))
		for _, err := range []error{c.keepMark(t.Context(), path), c.checkMark(t.Context(), ConnectOptions{Mark: path})} {
			require.True(t, integrity.IsDamaged(err))
			require.ErrorContains(t, err, "--accept-log-loss")
			require.NotContains(t, err.Error(), "log repair", "which is for the embedded server")
		}
	}
	full := errors.New("no space left")
	require.ErrorIs(t, c.checkMark(t.Context(), ConnectOptions{Mark: path, AcceptLoss: func(error) error { return full }}), full)
	require.FileExists(t, path)
	require.NoError(t, c.checkMark(t.Context(), ConnectOptions{Mark: path, AcceptLoss: func(error) error { return nil }}))
	require.NoFileExists(t, path)
	require.NoError(t, integrity.WriteMark(path, mark))
	require.NoError(t, c.checkMark(t.Context(), ConnectOptions{Mark: path, AcceptLoss: func(error) error { return full }}), "nothing to accept")
	require.NoError(t, os.Remove(path))
	require.NoError(t, c.keepMark(t.Context(), path), "a new control plane")
	require.NoError(t, c.mark.Close(integrity.Hash{}))
}

// A control plane that has a mark makes nothing in another cluster.
func TestTheMarkIsCheckedFirst(t *testing.T) {
	s := start(t)
	path := filepath.Join(t.TempDir(), "log.mark")
	require.NoError(t, integrity.WriteMark(path, integrity.HighWaterMark{Durable: 3}))
	require.NoError(t, s.js.DeleteStream(t.Context(), eventlog.Stream))
	js := jetstreamOf(t, s.keeper)
	require.NoError(t, js.DeleteStream(t.Context(), eventlog.Stream))
	c := &Connection{control: s.control, keeper: s.keeper}
	err := c.checkMark(t.Context(), ConnectOptions{Mark: path})
	require.ErrorContains(t, err, "--nats-url")
	_, err = s.js.Stream(t.Context(), eventlog.Stream)
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
}
