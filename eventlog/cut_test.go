package eventlog

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A power failure may cut the newest block after any record, or within one,
// before the mark was written. The log then holds the events before the cut,
// and nothing else: each change is one event, so none is half done. (What the
// platform makes of each such log is shown by the schedulers' tests.)
func TestABlockIsCutAtEveryRecord(t *testing.T) {
	dir := stopped(t, 12)
	block := filepath.Join(newDiskSync(dir, "CONTROL", Stream).dir, "1.blk")
	content, err := os.ReadFile(block)
	require.NoError(t, err)
	ends := []int64{0}
	all, err := blocksOf(filepath.Dir(block))
	require.NoError(t, err)
	require.Len(t, all, 1)
	_, err = all[0].scan(Stream, 0, func(r record) { ends = append(ends, ends[len(ends)-1]+int64(len(r.raw))) }, func(f flaw) { t.Fatal(f) })
	require.NoError(t, err)
	require.Len(t, ends, 13)
	for whole, end := range ends {
		for _, more := range []int64{0, 1, 30} {
			if end+more > int64(len(content)) {
				continue
			}
			cut := filepath.Join(t.TempDir(), "nats")
			require.NoError(t, os.CopyFS(cut, os.DirFS(dir)))
			require.NoError(t, os.RemoveAll(filepath.Join(cut, "jetstream", "READERS"))) // it is never ahead of what is synced
			at := filepath.Join(newDiskSync(cut, "CONTROL", Stream).dir, "1.blk")
			require.NoError(t, os.Truncate(at, end+more))
			require.NoError(t, os.Remove(filepath.Join(filepath.Dir(at), "index.db")))
			s, err := StartServer(ServerOptions{Dir: cut, Mark: filepath.Join(t.TempDir(), "mark")})
			require.NoError(t, err, "%d events and %d bytes", whole, more)
			require.Len(t, collect(t, s.Log().Read(t.Context(), "", 0)), whole)
			mustAppend(t, s.Log(), write("next", 0))
			s.Close()
		}
	}
}

// Logs of earlier versions have batches; one whose end a power failure took is
// told of.
func TestATornBatchIsToldOf(t *testing.T) {
	record := func(position uint64, header string) record {
		return record{position: position, header: []byte("NATS/1.0\r\n" + header + "\r\n\r\n")}
	}
	var found survey
	for i, header := range []string{
		"ce-id: a", "Nats-Batch-Id: x\r\nNats-Batch-Sequence: 1", "Nats-Batch-Id: x\r\nNats-Batch-Sequence: 2\r\nNats-Batch-Commit: 1",
		"Nats-Batch-Id: y\r\nNats-Batch-Sequence: 1", "ce-id: b", "Nats-Batch-Id: z",
	} {
		found.noteBatch(record(uint64(i+1), header))
		found.last = uint64(i + 1)
	}
	require.Equal(t, []uint64{4}, found.torn)
	require.Equal(t, "z", found.batch, "the last is open")
}
