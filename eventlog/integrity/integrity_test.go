package integrity

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/disk"
	"anneal/domain"
	"anneal/internal/testutil"
)

// TestHashChainMatchesItsDefinition checks that HashChain computes the hash that its doc comment
// defines.
func TestHashChainMatchesItsDefinition(t *testing.T) {
	header := nats.Header{"ce-id": {"e1"}, "Nats-Msg-Id": {"e1"}, "content-type": {"application/json"},
		"ce-actor": {"a b"}}
	raw := "NATS/1.0\r\nce-id: e1\r\nNats-Msg-Id: e1\r\ncontent-type:application/json\r\nce-actor: a b\r\n\r\n"
	var want Hash
	for position := range uint64(2) {
		text := string(want[:]) + "\x00\x00\x00\x00\x00\x00\x00" + string(rune(position+1)) +
			"\x00\x00\x00\x0aevents.a.b" + "\x00\x00\x00\x03" +
			"\x00\x00\x00\x08ce-actor\x00\x00\x00\x03a b" +
			"\x00\x00\x00\x05ce-id\x00\x00\x00\x02e1" +
			"\x00\x00\x00\x0ccontent-type\x00\x00\x00\x10application/json" +
			"\x00\x00\x00\x02{}"
		want = sha256.Sum256([]byte(text))
	}
	var c HashChain
	require.NoError(t, c.Extend(MessageOf(1, "events.a.b", header, []byte("{}"))))
	attributes, ok := attributesOf([]byte(raw))
	require.True(t, ok)
	require.NoError(t, c.Extend(Message{2, "events.a.b", attributes, []byte("{}")}))
	require.Equal(t, want, c.Hash)
	require.Equal(t, Checkpoint{2, "e1"}, c.Checkpoint)
	require.Equal(t, domain.DataLoss, domain.CodeOf(c.Extend(Message{position: 4})))
}

func TestMarkSurvivesATornWrite(t *testing.T) {
	synctest.Test(t, testTornWrite) // in synctest, so that the timers do not write while the test changes the file
}

func testTornWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mark")
	_, err := ReadMark(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	h, err := OpenMark(path, HighWaterMark{Durable: 5, Lost: 2, LostAt: 3})
	require.NoError(t, err)
	require.True(t, h.Follows(1))
	require.NoError(t, h.Extend(Message{position: 1, header: []Attribute{{attributeID, "e1"}}}))
	require.False(t, h.Follows(1))
	for position := range uint64(10) {
		require.NoError(t, h.SetDurable(position))
	}
	h.write() // a running server calls write from a timer, markWrite after an update
	now := h.Mark()
	found, err := ReadMark(path)
	require.NoError(t, err)
	require.Equal(t, now, found, "including updates that are not synced, unless the power fails")
	require.Equal(t, uint64(9), found.Durable)
	require.Equal(t, "e1", found.EventID)
	flipByte(t, path, 100) // damage the slot that was written last
	found, err = ReadMark(path)
	require.NoError(t, err)
	require.Equal(t, uint64(5), found.Durable)
	flipByte(t, path, slotGap+100)
	_, err = ReadMark(path)
	require.ErrorIs(t, err, ErrMarkDamaged)
	require.NoError(t, h.Close(Hash{1}))
	found, err = ReadMark(path)
	require.NoError(t, err)
	require.Equal(t, Hash{1}, found.Files)
	require.Equal(t, uint64(2), found.Lost)
}

// TestMarkIsWrittenSoon checks that an update of the mark is written after markWrite and synced
// after markSync.
func TestMarkIsWrittenSoon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mark")
	synctest.Test(t, func(t *testing.T) {
		h, err := OpenMark(path, HighWaterMark{})
		require.NoError(t, err)
		var syncs atomic.Int64
		h.Sync = func(*os.File) error { syncs.Add(1); return nil }
		for position := range uint64(100) {
			require.NoError(t, h.SetDurable(position+1))
			time.Sleep(markWrite / 10)
		}
		time.Sleep(markWrite)
		found, err := ReadMark(path)
		require.NoError(t, err)
		require.Equal(t, uint64(100), found.Durable)
		require.Less(t, found.written, uint64(20), "writes of 100 updates")
		require.Zero(t, syncs.Load())
		time.Sleep(markSync)
		require.EqualValues(t, 1, syncs.Load())
		time.Sleep(10 * markSync)
		require.EqualValues(t, 1, syncs.Load(), "nothing changed since")
		require.NoError(t, h.SetDurable(101))
		require.NoError(t, h.Close(Hash{}))
	})
	found, err := ReadMark(path)
	require.NoError(t, err)
	require.Equal(t, uint64(101), found.Durable)
}

// TestSyncsOfTheMarkDoNotOverlap checks that the slots change by turns, so that the last synced
// slot is never the next to be written, and that Close waits for a sync.
func TestSyncsOfTheMarkDoNotOverlap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mark")
	h, err := OpenMark(path, HighWaterMark{})
	require.NoError(t, err)
	var syncing atomic.Int64
	var slots []int64
	h.Sync = func(*os.File) error {
		assert.EqualValues(t, 1, syncing.Add(1))
		h.mu.Lock()
		slots = append(slots, h.slot)
		h.mu.Unlock()
		for range 100 {
			runtime.Gosched()
		}
		assert.False(t, h.closed)
		syncing.Add(-1)
		return nil
	}
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for range 20 {
				_ = h.Update(func(m *HighWaterMark) { m.Durable++ }) // after Close, Update returns an error
			}
			if i == 0 {
				assert.NoError(t, h.Close(Hash{}))
			}
		})
	}
	group.Wait()
	for i := range slots {
		require.EqualValues(t, i%2, slots[i], "sync %d", i)
	}
}

// TestAMarkThatCannotBeWrittenRefusesAppends checks that an error of the delayed write is returned
// by all later calls.
func TestAMarkThatCannotBeWrittenRefusesAppends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := OpenMark(filepath.Join(t.TempDir(), "mark"), HighWaterMark{})
		require.NoError(t, err)
		require.NoError(t, h.file.Close())
		require.NoError(t, h.SetDurable(1))
		time.Sleep(2 * markWrite)
		require.Equal(t, domain.Unavailable, domain.CodeOf(h.Err()))
		require.Error(t, h.SetDurable(2))
		require.Error(t, h.Extend(Message{position: 1}))
		require.Error(t, h.Close(Hash{}))
	})
}

// TestATornBatchIsReported checks that a survey reports a batch of an earlier version whose last
// events are missing after a power failure.
func TestATornBatchIsReported(t *testing.T) {
	record := func(position uint64, header string) record {
		return record{position: position, header: []byte("NATS/1.0\r\n" + header + "\r\n\r\n")}
	}
	var found survey
	for i, header := range []string{
		"ce-id: a", "Nats-Batch-Id: x\r\nNats-Batch-Sequence: 1",
		"Nats-Batch-Id: x\r\nNats-Batch-Sequence: 2\r\nNats-Batch-Commit: 1",
		"Nats-Batch-Id: y\r\nNats-Batch-Sequence: 1", "ce-id: b", "Nats-Batch-Id: z",
	} {
		found.noteBatch(record(uint64(i+1), header))
		found.last = uint64(i + 1)
	}
	require.Equal(t, []uint64{4}, found.torn)
	require.Equal(t, "z", found.batch, "the last is open")
}

// TestBlocksAreReplaced checks that replaceBlocks replaces the former blocks with the repaired
// ones, also when the former ones are missing.
func TestBlocksAreReplaced(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, there := range []bool{true, false} {
		require.NoError(t, os.MkdirAll(at("new"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(at("new"), "1.blk"), []byte("new"), 0o600))
		if there {
			require.NoError(t, os.MkdirAll(at("log"), 0o700))
			done, err := disk.Exchange(at("new"), at("log"))
			require.NoError(t, err)
			if done {
				require.FileExists(t, filepath.Join(at("log"), "1.blk"))
				_, err = disk.Exchange(at("new"), at("log"))
				require.NoError(t, err)
			}
		}
		require.NoError(t, replaceBlocks(at("log"), at("new"), at("former")))
		require.FileExists(t, filepath.Join(at("log"), "1.blk"))
		require.NoDirExists(t, at("new"))
		require.NoError(t, os.RemoveAll(at("log")))
		require.NoError(t, os.RemoveAll(at("former")))
	}
}

// TestUnknownFilesAreNoDamage checks that foreign detects files of a kind that only other versions
// or settings of NATS write, so that the log is not reported as damaged.
func TestUnknownFilesAreNoDamage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "msgs")
	require.Empty(t, foreign(dir), "no files")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "index.db"), nil, 0o600))
	require.Empty(t, foreign(dir), "the blocks are missing")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "1.seg"), []byte("x"), 0o600))
	require.Contains(t, foreign(dir), "1.seg")
}

func flipByte(t *testing.T, path string, at int64) {
	content := testutil.ReadFile(t, path)
	content[at] ^= 0x10
	require.NoError(t, os.WriteFile(path, content, 0o600))
}
