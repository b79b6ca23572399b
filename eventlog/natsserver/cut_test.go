package natsserver

import (
	"anneal/eventlog"
	"anneal/eventlog/integrity"
	"anneal/eventlog/logtest"
	"anneal/internal/testutil"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestABlockIsCutAtEveryRecord checks that a log without a mark whose newest block is cut after any
// record, or within a record, as by a power failure, starts with exactly the events before the cut
// and accepts appends. (The tests of schedulers check that the platform continues from each such
// log.)
func TestABlockIsCutAtEveryRecord(t *testing.T) {
	dir := stopped(t, 12)
	block := filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), "1.blk")
	content := testutil.ReadFile(t, block)
	ends := recordEnds(content)
	require.Len(t, ends, 13)
	for whole, end := range ends {
		for _, more := range []int64{0, 1, 30} {
			if end+more > int64(len(content)) {
				continue
			}
			cut := filepath.Join(t.TempDir(), "nats")
			require.NoError(t, os.CopyFS(cut, os.DirFS(dir)))
			// A mirror has no events after the synced end of the log, so the mirror is removed.
			require.NoError(t, os.RemoveAll(filepath.Join(cut, "jetstream", "READERS")))
			at := filepath.Join(integrity.BlockDir(cut, "CONTROL", eventlog.Stream), "1.blk")
			require.NoError(t, os.Truncate(at, end+more))
			require.NoError(t, os.Remove(filepath.Join(filepath.Dir(at), "index.db")))
			s, err := Start(Options{Dir: cut, Mark: filepath.Join(t.TempDir(), "mark")})
			require.NoError(t, err, "%d events and %d bytes", whole, more)
			require.Len(t, logtest.Collect(t, s.Log().Read(t.Context(), "", 0)), whole)
			logtest.Append(t, s.Log(), logtest.Write("next", 0))
			s.Close()
		}
	}
}

// recordEnds returns 0 and the end offset of each record in a block.
func recordEnds(block []byte) []int64 {
	ends := []int64{0}
	for at := 0; at+4 <= len(block); {
		at += int(binary.LittleEndian.Uint32(block[at:]) &^ (1 << 31))
		ends = append(ends, int64(at))
	}
	return ends
}
