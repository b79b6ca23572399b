package natsserver

import (
	"anneal/eventlog"
	"anneal/eventlog/integrity"
	"anneal/eventlog/logtest"
	"anneal/internal/testutil"
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// TestScrubReportsDamage checks that Scrub logs damage to the files of a running server, and that
// the next start refuses the log.
func TestScrubReportsDamage(t *testing.T) {
	dir := stopped(t, 200)
	var output bytes.Buffer
	s := mustStart(t, Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&output, nil))})
	require.NoError(t, integrity.Scrub(t.Context(), s.dir, s.mark, s.logger))
	require.NotContains(t, output.String(), "anneal log repair")
	flip(t, filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), "1.blk"), 5_000_000)
	require.NoError(t, integrity.Scrub(t.Context(), s.dir, s.mark, s.logger))
	require.Contains(t, output.String(), "anneal log repair")
	s.Close()
	mark := mustReadMark(t, integrity.MarkPath(dir))
	require.NotZero(t, mark.Damaged)
	_, err := Start(Options{Dir: dir})
	require.True(t, integrity.IsDamaged(err))
}

// TestScrubWithoutADiskSync checks that Scrub finds damage when NATS syncs each message itself.
func TestScrubWithoutADiskSync(t *testing.T) {
	dir := stopped(t, 200)
	s := mustStart(t, Options{Dir: dir, syncAlways: true})
	t.Cleanup(s.Close)
	require.Empty(t, s.files.Blocks)
	require.NoError(t, integrity.Scrub(t.Context(), s.dir, s.mark, s.logger))
	require.Zero(t, s.mark.Mark().Damaged)
	flip(t, filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), "1.blk"), 5_000_000)
	require.NoError(t, integrity.Scrub(t.Context(), s.dir, s.mark, s.logger))
	require.NotZero(t, s.mark.Mark().Damaged)
}

// TestScrubOfAnEmptyNewestBlock checks that Scrub does not report a newest block that the server
// has created but not written as damage.
func TestScrubOfAnEmptyNewestBlock(t *testing.T) {
	dir := stopped(t, 200)
	s := mustStart(t, Options{Dir: dir})
	t.Cleanup(s.Close)
	require.NoError(t, os.WriteFile(filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), "4.blk"), nil,
		0o600))
	require.NoError(t, integrity.Scrub(t.Context(), s.dir, s.mark, s.logger))
	require.Zero(t, s.mark.Mark().Damaged)
}

// TestStartChecksAFindingOfScrub checks that the start after Scrub recorded damage in the mark
// removes that record when the log is complete, and otherwise refuses the log.
func TestStartChecksAFindingOfScrub(t *testing.T) {
	dir := stopped(t, 200)
	mark := mustReadMark(t, integrity.MarkPath(dir))
	mark.Damaged = 1
	require.NoError(t, integrity.WriteMark(integrity.MarkPath(dir), mark))
	s := mustStart(t, Options{Dir: dir})
	require.Zero(t, s.mark.Mark().Damaged)
	s.Close()
	mark = mustReadMark(t, integrity.MarkPath(dir))
	require.Zero(t, mark.Damaged)

	msgs := integrity.BlockDir(dir, "CONTROL", eventlog.Stream)
	flip(t, filepath.Join(msgs, "1.blk"), 5_000_000)
	found, err := integrity.VerifyFiles(dir, integrity.MarkPath(dir), integrity.Checkpoint{})
	require.NoError(t, err)
	require.Len(t, found.Missing, 1)
	// The damage is after the position of this mark.
	require.NoError(t, integrity.WriteMark(integrity.MarkPath(dir),
		integrity.HighWaterMark{Damaged: found.Missing[0].First}))
	_, err = Start(Options{Dir: dir})
	require.True(t, integrity.IsDamaged(err), "%v", err)
}

// TestEachControlPlaneKeepsAMark checks that a control plane of a cluster keeps a mark, and refuses
// a log that has fewer events than the mark or different ones, unless AcceptLoss accepts the loss.
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
	mark := mustReadMark(t, path)
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
	require.ErrorIs(t, c.checkMark(t.Context(), ConnectOptions{Mark: path, AcceptLoss: func(error) error { return full }}),
		full)
	require.FileExists(t, path)
	require.NoError(t, c.checkMark(t.Context(), ConnectOptions{Mark: path, AcceptLoss: func(error) error { return nil }}))
	require.NoFileExists(t, path)
	require.NoError(t, integrity.WriteMark(path, mark))
	require.NoError(t, c.checkMark(t.Context(), ConnectOptions{Mark: path, AcceptLoss: func(error) error { return full }}),
		"nothing to accept")
	require.NoError(t, os.Remove(path))
	require.NoError(t, c.keepMark(t.Context(), path), "a new control plane")
	require.NoError(t, c.mark.Close(integrity.Hash{}))
}

// TestTheMarkIsCheckedFirst checks that checkMark returns an error for a cluster without a log, and
// creates no stream there.
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

// TestStartOfALargeLogReadsWhatHasChanged checks that a start after a clean shutdown reads only the
// newest block of a large log, unless a file of the log or of its mirror has changed, even if its
// modification time was set back, or NATS's index is missing.
func TestStartOfALargeLogReadsWhatHasChanged(t *testing.T) {
	dir := stopped(t, 700)
	completeMirror(t, dir)
	log := filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), "1.blk")
	mirror := filepath.Join(integrity.BlockDir(dir, "READERS", eventlog.Stream), "1.blk")
	partial := func() bool {
		result, err := integrity.CheckStore(dir, integrity.MarkPath(dir), integrity.Checkpoint{},
			slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		return result.Partial
	}
	require.True(t, partial())
	for _, path := range []string{log, mirror} {
		before := testutil.Stat(t, path)
		require.NoError(t, os.Chtimes(path, before.ModTime().Add(1), before.ModTime().Add(1)))
		require.NoError(t, os.Chtimes(path, before.ModTime(), before.ModTime()))
		require.False(t, partial(), "%s has changed", path)
		completeMirror(t, dir)
		require.True(t, partial())
	}
	require.NoError(t, os.Remove(filepath.Join(filepath.Dir(log), "index.db")))
	require.False(t, partial(), "without its index, NATS reads the blocks and cuts off damaged ones")
	completeMirror(t, dir)
	flip(t, log, 5_000_000)
	_, err := Start(Options{Dir: dir})
	require.True(t, integrity.IsDamaged(err), "%v", err)
}

// decayed changes a byte of a file, and makes the mark say that no program has changed the file: as
// if the disk had lost the byte.
func decayed(t *testing.T, dir, path string) {
	t.Helper()
	flip(t, path, 5_000_000)
	mark := mustReadMark(t, integrity.MarkPath(dir))
	mark.Files = integrity.FilesHash(dir)
	require.NoError(t, integrity.WriteMark(integrity.MarkPath(dir), mark))
}

// TestScrubFindsDecay checks that the server finds what a disk has lost without a change of the
// files, in the log and in its mirror, and that the next start refuses the log and recreates the
// mirror.
func TestScrubFindsDecay(t *testing.T) {
	dir := stopped(t, 700)
	completeMirror(t, dir)
	scrub := func() string {
		var output bytes.Buffer
		s := mustStart(t, Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&output, nil))})
		defer s.Close()
		require.NoError(t, integrity.Scrub(t.Context(), s.dir, s.mark, s.logger))
		return output.String()
	}
	require.NotContains(t, scrub(), "level=WARN")
	decayed(t, dir, filepath.Join(integrity.BlockDir(dir, "READERS", eventlog.Stream), "1.blk"))
	require.Contains(t, scrub(), "the next start recreates the mirror")
	require.Contains(t, scrub(), "which the server creates again")
	completeMirror(t, dir)
	require.NotContains(t, scrub(), "level=WARN")
	decayed(t, dir, filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), "1.blk"))
	require.Contains(t, scrub(), "anneal log repair")
	_, err := Start(Options{Dir: dir})
	require.True(t, integrity.IsDamaged(err), "%v", err)
}

// TestAStartIsNotScrubbed checks that a server that has not read all blocks of a large log does not
// leave a mark that permits the next start to leave them out as well.
func TestAStartIsNotScrubbed(t *testing.T) {
	dir := stopped(t, 700)
	completeMirror(t, dir)
	for _, partial := range []bool{true, false} {
		s := mustStart(t, Options{Dir: dir})
		require.Equal(t, partial, s.partial)
		s.Close()
	}
}
