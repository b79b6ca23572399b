package natsserver

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/eventlog/integrity"
	"anneal/eventlog/metering"
)

// usageRecords is the number of records in stoppedUsage. They fill two blocks.
const usageRecords = 450

// stoppedUsage returns the directory of a stopped server with usage records and a complete mirror.
func stoppedUsage(t *testing.T) (dir string) {
	dir = filepath.Join(t.TempDir(), "nats")
	s := mustStart(t, Options{Dir: dir})
	defer s.Close()
	js := jetstreamOf(t, s.control)
	for i := range usageRecords {
		_, err := js.Publish(t.Context(), "usage.acme.chat", fmt.Appendf(nil, "%020000d", i+1))
		require.NoError(t, err)
	}
	mirror, err := jetstreamOf(t, s.keeper).Stream(t.Context(), metering.Stream)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		info, err := mirror.Info(t.Context())
		return err == nil && info.State.LastSeq == usageRecords
	}, startTimeout, 10*time.Millisecond)
	return dir
}

// readUsage returns the positions that have no usage record, or another one than stoppedUsage
// stored, in the stream and in the readers' mirror.
func readUsage(t *testing.T, s *Server) (stream, mirror []uint64) {
	lost := func(from *Server, keeper bool) (positions []uint64) {
		nc := from.control
		if keeper {
			nc = from.keeper
		}
		all, err := jetstreamOf(t, nc).Stream(t.Context(), metering.Stream)
		require.NoError(t, err)
		if keeper {
			require.Eventually(t, func() bool {
				info, err := all.Info(t.Context())
				return err == nil && info.State.LastSeq == usageRecords
			}, startTimeout, 10*time.Millisecond)
		}
		for i := uint64(1); i <= usageRecords; i++ {
			m, err := all.GetMsg(t.Context(), i)
			if err != nil || !bytes.Equal(m.Data, fmt.Appendf(nil, "%020000d", i)) {
				positions = append(positions, i)
			}
		}
		return positions
	}
	return lost(s, false), lost(s, true)
}

// TestDamageOfUsage checks that damaged usage records are restored from the readers' mirror, that a
// damaged mirror is created again, and that records that neither has are reported by their
// positions. Records that the stream deleted because of its limits are no damage.
func TestDamageOfUsage(t *testing.T) {
	template := stoppedUsage(t)
	own := func(dir string) string { return integrity.BlockDir(dir, "CONTROL", metering.Stream) }
	copied := func(dir string) string { return integrity.BlockDir(dir, "READERS", metering.Stream) }
	for what, c := range map[string]struct {
		harm func(dir string)
		says string // text that the log of the start must contain
	}{
		"no damage": {func(string) {}, ""},
		"a flipped byte": {func(dir string) { flip(t, filepath.Join(own(dir), "1.blk"), 5_000_000) },
			"position 250"},
		"a flipped byte without index": {func(dir string) {
			flip(t, filepath.Join(own(dir), "1.blk"), 5_000_000)
			require.NoError(t, os.Remove(filepath.Join(own(dir), "index.db")))
		}, "position 250"},
		"the newest block is cut": {func(dir string) {
			require.NoError(t, os.Truncate(filepath.Join(own(dir), "2.blk"), 300_000))
		}, "to 450"},
		"the newest block is missing": {func(dir string) {
			require.NoError(t, os.Remove(filepath.Join(own(dir), "2.blk")))
		}, "to 450"},
		"the oldest block is missing": {func(dir string) {
			require.NoError(t, os.Remove(filepath.Join(own(dir), "1.blk")))
		}, "positions 1 to"},
		"all blocks are missing": {func(dir string) {
			require.NoError(t, os.RemoveAll(own(dir)))
		}, "positions 1 to 450"},
		"a flipped byte in the mirror": {func(dir string) {
			flip(t, filepath.Join(copied(dir), "1.blk"), 5_000_000)
		}, "removed the mirror, which the server creates again"},
		"all blocks of the mirror are missing": {func(dir string) {
			for _, name := range []string{"1.blk", "2.blk"} {
				require.NoError(t, os.Remove(filepath.Join(copied(dir), name)))
			}
		}, "removed the mirror, which the server creates again"},
		"a block of the mirror is missing": {func(dir string) {
			require.NoError(t, os.Remove(filepath.Join(copied(dir), "1.blk")))
		}, "removed the mirror, which the server creates again"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "nats")
			require.NoError(t, os.CopyFS(dir, os.DirFS(template)))
			require.NoError(t, os.Link(integrity.MarkPath(template), integrity.MarkPath(dir)))
			c.harm(dir)
			var logged bytes.Buffer
			s := mustStart(t, Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&logged, nil))})
			defer s.Close()
			stream, mirror := readUsage(t, s)
			require.Empty(t, stream, "%s", &logged)
			require.Empty(t, mirror, "%s", &logged)
			require.Contains(t, logged.String(), c.says)
			if c.says == "" {
				require.NotContains(t, logged.String(), metering.Stream)
			}
		})
	}
	t.Run("both", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "nats")
		require.NoError(t, os.CopyFS(dir, os.DirFS(template)))
		flip(t, filepath.Join(own(dir), "1.blk"), 5_000_000)
		flip(t, filepath.Join(copied(dir), "1.blk"), 5_000_000)
		var logged bytes.Buffer
		s := mustStart(t, Options{Dir: dir, Mark: filepath.Join(t.TempDir(), "mark"),
			Log: slog.New(slog.NewTextHandler(&logged, nil))})
		defer s.Close()
		stream, _ := readUsage(t, s)
		require.Len(t, stream, 1)
		require.Regexp(t, fmt.Sprintf(`level=ERROR .*are lost.* positions="position %d \(`, stream[0]), logged.String())
	})
	t.Run("deleted oldest records are no damage", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "nats")
		require.NoError(t, os.CopyFS(dir, os.DirFS(template)))
		s := mustStart(t, Options{Dir: dir, Mark: filepath.Join(t.TempDir(), "mark")})
		kept := usageRetention
		kept.Count = 100
		for _, nc := range []*nats.Conn{s.keeper, s.control} {
			js := jetstreamOf(t, nc)
			stream, err := js.Stream(t.Context(), metering.Stream)
			require.NoError(t, err)
			config := stream.CachedInfo().Config
			config.MaxMsgs = int64(kept.Count)
			_, err = js.UpdateStream(t.Context(), config)
			require.NoError(t, err)
		}
		s.Close()
		var logged bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&logged, nil))
		require.NoError(t, integrity.CheckRecords(dir, metering.Stream, kept, time.Now(), logger))
		require.Empty(t, logged.String())
		kept.Count, kept.Age = usageRetention.Count, time.Nanosecond
		require.NoError(t, integrity.CheckRecords(dir, metering.Stream, kept, time.Now(), logger))
		require.Empty(t, logged.String())
	})
}
