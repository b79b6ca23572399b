package natsserver

import (
	"anneal/eventlog"
	"anneal/eventlog/integrity"
	"anneal/eventlog/logtest"
	"anneal/internal/testutil"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/minio/highwayhash"
	"github.com/stretchr/testify/require"
)

func idsOf(t *testing.T, s *Server) (ids []string) {
	for e, err := range s.Log().Follow(t.Context(), "", 0) {
		require.NoError(t, err)
		ids = append(ids, e.ID)
		if last, err := s.Log().Last(t.Context()); err != nil || e.Position == last.Position {
			require.NoError(t, err)
			break
		}
	}
	return ids
}

// completeMirror starts a server, waits until the readers' mirror has every event, and stops the
// server. It returns the IDs of the log's events.
func completeMirror(t *testing.T, dir string) []string {
	s := mustStart(t, Options{Dir: dir})
	defer s.Close()
	ids := idsOf(t, s)
	mirror, err := eventlog.OpenReader(t.Context(), s.keeper)
	require.NoError(t, err)
	for {
		last, err := mirror.Last(t.Context())
		require.NoError(t, err)
		if last.Position == uint64(len(ids)) {
			return ids
		}
		require.True(t, eventlog.Sleep(t.Context(), 10*time.Millisecond))
	}
}

func TestRepairFromTheMirror(t *testing.T) {
	msgs := func(dir, name string) string {
		return filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), name)
	}
	for what, harm := range map[string]func(dir string){
		"a flipped byte": func(dir string) { flip(t, msgs(dir, "1.blk"), 5_000_000) },
		"the newest block is cut": func(dir string) {
			require.NoError(t, os.Truncate(msgs(dir, "3.blk"), 300_000))
		},
		"a block is missing":             func(dir string) { require.NoError(t, os.Remove(msgs(dir, "2.blk"))) },
		"the log is missing":             func(dir string) { require.NoError(t, os.RemoveAll(filepath.Dir(msgs(dir, "")))) },
		"an event with another checksum": func(dir string) { alter(t, msgs(dir, "1.blk"), 3) },
	} {
		t.Run(what, func(t *testing.T) {
			dir := stopped(t, 200)
			ids := completeMirror(t, dir)
			harm(dir)
			_, err := Start(Options{Dir: dir})
			require.True(t, integrity.IsDamaged(err), err)
			found, err := integrity.VerifyFiles(dir, "", integrity.Checkpoint{})
			require.NoError(t, err)
			require.False(t, found.Intact())
			require.NotEmpty(t, append(found.Missing, found.Differs...))
			report, err := integrity.Repair(integrity.RepairOptions{Dir: dir, Now: time.Now()})
			require.NoError(t, err)
			require.True(t, report.Intact(), report)
			require.NotEmpty(t, report.Restored)
			require.Equal(t, uint64(200), report.Events)
			s := mustStart(t, Options{Dir: dir})
			require.Equal(t, ids, idsOf(t, s))
			s.Close()
			found, err = integrity.VerifyFiles(dir, "", integrity.Checkpoint{})
			require.NoError(t, err)
			require.True(t, found.Intact(), found)
		})
	}
}

// TestVerifyAMarkWithoutAHash verifies a log whose high-water mark has no hash of events, as a
// server leaves it that is killed before its mark is written. The log is intact if it has all
// events.
func TestVerifyAMarkWithoutAHash(t *testing.T) {
	dir := stopped(t, 20)
	hash := mustReadMark(t, integrity.MarkPath(dir)).Hash.String()
	for durable, intact := range map[uint64]bool{0: true, 7: true, 20: true, 21: false} {
		require.NoError(t, integrity.WriteMark(integrity.MarkPath(dir), integrity.HighWaterMark{Durable: durable}))
		found, err := integrity.VerifyFiles(dir, "", integrity.Checkpoint{})
		require.NoError(t, err)
		require.Equal(t, intact, found.Intact(), found)
		require.Equal(t, min(durable, 20), found.Events, "of the events after the mark, none was acknowledged")
		require.Empty(t, found.Marked)
		if durable >= 20 {
			require.Equal(t, hash, found.Hash)
		}
	}
}

// alter changes the body of the nth record in the block file at path and updates the record's
// checksum, as an attacker would.
func alter(t *testing.T, path string, n int) {
	content := testutil.ReadFile(t, path)
	ends := recordEnds(content)
	record := content[ends[n-1]:ends[n]]
	record[len(record)-8-10] ^= 1 // a byte of the body, which precedes the 8 bytes of the checksum
	subject := record[22:][:binary.LittleEndian.Uint16(record[20:])]
	header := record[22+len(subject)+4:][:binary.LittleEndian.Uint32(record[22+len(subject):])]
	body := record[22+len(subject)+4+len(header) : len(record)-8]
	key := sha256.Sum256([]byte(eventlog.Stream + "-1"))
	sum, err := highwayhash.NewDigest64(key[:])
	require.NoError(t, err)
	for _, part := range [][]byte{record[4:20], subject, header, body} {
		_, _ = sum.Write(part)
	}
	sum.Sum(record[len(record)-8 : len(record)-8])
	require.NoError(t, os.WriteFile(path, content, 0o600))
}

func TestRepairReportsLostEvents(t *testing.T) {
	dir := stopped(t, 100)
	completeMirror(t, dir)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "jetstream", "READERS")))
	flip(t, filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), "1.blk"), 5_000_000)
	before := mustReadMark(t, integrity.MarkPath(dir))

	report, err := integrity.Repair(integrity.RepairOptions{Dir: dir, Now: time.Now()})
	require.NoError(t, err)
	require.False(t, report.Intact())
	require.False(t, report.Changed)
	require.Len(t, report.Lost, 1)
	lost := report.Lost[0].First
	require.Equal(t, lost, report.Lost[0].Last, "one flipped byte damages one event")
	require.Equal(t, lost-1, report.Events)
	require.Equal(t, 100-lost, report.GivenUp)
	_, err = Start(Options{Dir: dir})
	require.True(t, integrity.IsDamaged(err), "nothing was changed")

	report, err = integrity.Repair(integrity.RepairOptions{Dir: dir, AcceptLoss: true, Now: time.Now()})
	require.NoError(t, err)
	require.True(t, report.Changed)
	given := testutil.ReadFile(t, filepath.Join(report.Aside, "given-up.jsonl"))
	require.NotEmpty(t, given)
	mark := mustReadMark(t, integrity.MarkPath(dir))
	require.Equal(t, before.Durable-lost+1, mark.Lost)
	require.Equal(t, lost-1, mark.LostAt)
	s := start(t, func(o *Options) { o.Dir, o.NoSync = dir, false })
	require.Len(t, idsOf(t, s), int(lost-1))
	_, err = s.Log().Append(t.Context(), logtest.Write("after", 0))
	require.NoError(t, err)
}

// TestAnInterruptedRepairLosesNothing checks that Repair restores the log's files after an earlier
// repair was interrupted between its two renames.
func TestAnInterruptedRepairLosesNothing(t *testing.T) {
	dir := stopped(t, 200)
	ids := completeMirror(t, dir)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "jetstream", "READERS")))
	msgs, aside := integrity.BlockDir(dir, "CONTROL", eventlog.Stream), dir+".repaired-20260101T000000.000Z"
	require.NoError(t, os.MkdirAll(filepath.Join(aside, "new"), 0o700))
	require.NoError(t, os.Rename(msgs, filepath.Join(aside, "msgs")))
	report, err := integrity.Repair(integrity.RepairOptions{Dir: dir, Now: time.Now()})
	require.NoError(t, err)
	require.True(t, report.Intact(), report)
	require.Equal(t, uint64(200), report.Events)
	s := mustStart(t, Options{Dir: dir})
	require.Equal(t, ids, idsOf(t, s))
	s.Close()
}

// TestALossIsRecordedFirst checks that Repair with AcceptLoss discards no events when BeforeLoss,
// which records the loss, returns an error.
func TestALossIsRecordedFirst(t *testing.T) {
	dir := stopped(t, 100)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "jetstream", "READERS")))
	flip(t, filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), "1.blk"), 5_000_000)
	full := errors.New("no space left")
	_, err := integrity.Repair(integrity.RepairOptions{Dir: dir, AcceptLoss: true, Now: time.Now(),
		BeforeLoss: func(r integrity.RepairReport) error {
			require.NotEmpty(t, r.Lost)
			return full
		}})
	require.ErrorIs(t, err, full)
	_, err = Start(Options{Dir: dir})
	require.True(t, integrity.IsDamaged(err), "nothing was changed")
}

// TestTheMirrorRestoresTheTail checks that Start restores the log from the readers' mirror when the
// log's stream and its mark were deleted.
func TestTheMirrorRestoresTheTail(t *testing.T) {
	dir := stopped(t, 100)
	ids := completeMirror(t, dir)
	require.NoError(t, os.Remove(integrity.MarkPath(dir)))
	require.NoError(t, os.RemoveAll(filepath.Dir(integrity.BlockDir(dir, "CONTROL", eventlog.Stream))))
	s := mustStart(t, Options{Dir: dir})
	require.Equal(t, ids, idsOf(t, s))
	s.Close()
}

func TestADamagedMirrorIsRecreated(t *testing.T) {
	dir := stopped(t, 100)
	ids := completeMirror(t, dir)
	flip(t, filepath.Join(integrity.BlockDir(dir, "READERS", eventlog.Stream), "1.blk"), 5_000_000)
	require.Equal(t, ids, completeMirror(t, dir))
	require.NoError(t, os.Truncate(filepath.Join(integrity.BlockDir(dir, "READERS", eventlog.Stream), "1.blk"), 5_000_000))
	require.Equal(t, ids, completeMirror(t, dir))
}

// TestADamagedMirrorThatIsAheadIsRecreated checks that Start refuses a log without a mark when a
// damaged mirror has later events than the log, but recreates the mirror when the log reaches its
// mark, because the later events were then never acknowledged.
func TestADamagedMirrorThatIsAheadIsRecreated(t *testing.T) {
	dir := stopped(t, 100)
	ids := completeMirror(t, dir)
	flip(t, filepath.Join(integrity.BlockDir(dir, "READERS", eventlog.Stream), "1.blk"), 5_000_000)
	log := integrity.BlockDir(dir, "CONTROL", eventlog.Stream)
	block := filepath.Join(log, "2.blk")
	require.NoFileExists(t, filepath.Join(log, "3.blk"))
	content := testutil.ReadFile(t, block)
	end := int64(0)
	for _, at := range recordEnds(content) {
		if at+12 <= int64(len(content)) && binary.LittleEndian.Uint64(content[at+4:]) == 91 {
			end = at
		}
	}
	require.NotZero(t, end)
	require.NoError(t, os.Truncate(block, end))
	require.NoError(t, os.Remove(filepath.Join(log, "index.db")))
	require.NoError(t, os.Remove(integrity.MarkPath(dir)))
	_, err := Start(Options{Dir: dir})
	require.True(t, integrity.IsDamaged(err), "%v", err)
	require.NoError(t, integrity.WriteMark(integrity.MarkPath(dir), integrity.HighWaterMark{Durable: 90}))
	require.Equal(t, ids[:90], completeMirror(t, dir))
}

// TestUnsyncedEventsAreRewritten checks that the start after a failed sync writes the events after
// the mark to a new file. After a failed sync, the pages of the old file may differ from the disk
// although the kernel marks them clean.
func TestUnsyncedEventsAreRewritten(t *testing.T) {
	dir := stopped(t, 10)
	s := mustStart(t, Options{Dir: dir})
	syncWith(s, func(*os.File) error { return errors.New("input/output error") })
	_, err := s.Log().Append(t.Context(), logtest.Write("unsynced", 0))
	require.ErrorIs(t, err, eventlog.ErrUncertain)
	s.Close()
	mark := mustReadMark(t, integrity.MarkPath(dir))
	require.True(t, mark.Failed)
	require.Equal(t, uint64(10), mark.Durable)
	path := filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), "1.blk")
	before := testutil.Stat(t, path)
	content := testutil.ReadFile(t, path)

	s = mustStart(t, Options{Dir: dir})
	require.Len(t, idsOf(t, s), 11)
	s.Close()
	after := testutil.Stat(t, path)
	require.False(t, os.SameFile(before, after), "pages that the kernel wrongly marked clean are not used")
	again := testutil.ReadFile(t, path)
	require.Equal(t, content, again[:len(content)])
	mark = mustReadMark(t, integrity.MarkPath(dir))
	require.False(t, mark.Failed)
	require.Equal(t, uint64(11), mark.Durable)

	// When the disk has damaged events that were never acknowledged, the next start cuts them off
	// and keeps them in a separate file.
	s = mustStart(t, Options{Dir: dir})
	syncWith(s, func(*os.File) error { return errors.New("input/output error") })
	_, err = s.Log().Append(t.Context(), logtest.Write("unsynced2", 0))
	require.ErrorIs(t, err, eventlog.ErrUncertain)
	s.Close()
	flip(t, path, int64(len(again)+100))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "jetstream", "READERS")))
	s = mustStart(t, Options{Dir: dir})
	require.Len(t, idsOf(t, s), 11)
	s.Close()
	cut := testutil.Glob(t, dir+".cut-*")
	require.Len(t, cut, 1)
	kept := testutil.ReadFile(t, cut[0])
	require.Less(t, len(kept), 10_000, "only the cut-off records")
}

const keptCuts = 10 // the value of cutsKept in package integrity

// TestCutsAreLimited checks that only the newest files with cut-off records are kept when many
// starts cut off a torn record.
func TestCutsAreLimited(t *testing.T) {
	dir := stopped(t, 3)
	path := filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), "1.blk")
	var newest string
	for i := range keptCuts + 3 {
		content := testutil.ReadFile(t, path)
		torn := []byte("torn " + strconv.Itoa(i))
		require.NoError(t, os.WriteFile(path, append(content, torn...), 0o600))
		s := mustStart(t, Options{Dir: dir})
		// another event, so that the file with the next cut-off record gets another name
		logtest.Append(t, s.Log(), logtest.Write("w"+strconv.Itoa(i)+"-after", 0))
		s.Close()
		newest = fmt.Sprintf("%s.cut-%d-1.blk", dir, 3+i)
		kept := testutil.ReadFile(t, newest)
		require.Equal(t, torn, kept)
	}
	cut := testutil.Glob(t, dir+".cut-*")
	require.Len(t, cut, keptCuts)
	require.NoFileExists(t, fmt.Sprintf("%s.cut-%d-1.blk", dir, 5))
	require.FileExists(t, newest)
}
