package eventlog

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// stopped makes the folder of a stopped server whose log has so many events of
// 100 KB: 200 of them fill three blocks.
func stopped(t *testing.T, events int) (dir string) {
	t.Helper()
	made, _ := stoppedOnce.LoadOrStore(events, sync.OnceValues(func() (string, error) { return makeStopped(events) }))
	template, err := made.(func() (string, error))()
	require.NoError(t, err)
	dir = filepath.Join(t.TempDir(), "nats")
	require.NoError(t, os.CopyFS(dir, os.DirFS(template)))
	require.NoError(t, os.Rename(filepath.Join(dir, "mark"), markOf(dir)))
	return dir
}

var stoppedOnce sync.Map // by number of events

func TestMain(m *testing.M) {
	code := m.Run()
	stoppedOnce.Range(func(_, made any) bool {
		dir, _ := made.(func() (string, error))()
		return os.RemoveAll(dir) == nil
	})
	os.Exit(code)
}

func makeStopped(events int) (dir string, err error) {
	if dir, err = os.MkdirTemp("", "stopped-"); err != nil {
		return dir, err
	}
	s, err := StartServer(ServerOptions{Dir: dir, Mark: filepath.Join(dir, "mark")})
	if err != nil {
		return dir, err
	}
	defer s.Close()
	for i := range events {
		w := write(fmt.Sprintf("w%d", i), 0)
		w.Data = []byte(`{"pad":"` + strings.Repeat("x", 100<<10) + `"}`)
		if _, err := s.Log().Append(context.Background(), w); err != nil {
			return dir, err
		}
	}
	for e, err := range s.Log().Follow(context.Background(), "", 0) { // for the running hash
		if err != nil {
			return dir, err
		}
		if e.Position == uint64(events) {
			break
		}
	}
	return dir, nil
}

func blockFiles(t *testing.T, dir string) []string {
	paths, err := filepath.Glob(filepath.Join(newDiskSync(dir, "CONTROL", Stream).dir, "*.blk"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	return paths
}

func flip(t *testing.T, path string, at int64) {
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	content[at] ^= 0x10
	require.NoError(t, os.WriteFile(path, content, 0o600))
}

// The server of NATS cuts a block off at damage that it finds, and goes on.
func TestDamageIsNotCutOff(t *testing.T) {
	msgs := func(dir, name string) string { return filepath.Join(newDiskSync(dir, "CONTROL", Stream).dir, name) }
	for what, harm := range map[string]func(dir string){
		"a flipped byte without index": func(dir string) {
			flip(t, msgs(dir, "1.blk"), 5_000_000)
			require.NoError(t, os.Remove(msgs(dir, "index.db")))
		},
		"a flipped byte with index":  func(dir string) { flip(t, msgs(dir, "1.blk"), 5_000_000) },
		"a flip in the newest block": func(dir string) { flip(t, msgs(dir, "3.blk"), 1_000_000) },
		"the newest block is missing": func(dir string) {
			require.NoError(t, os.Remove(msgs(dir, "3.blk")))
			require.NoError(t, os.Remove(msgs(dir, "index.db")))
		},
		"a block is missing":  func(dir string) { require.NoError(t, os.Remove(msgs(dir, "2.blk"))) },
		"the log is missing":  func(dir string) { require.NoError(t, os.RemoveAll(filepath.Dir(msgs(dir, "")))) },
		"all of NATS is gone": func(dir string) { require.NoError(t, os.RemoveAll(dir)) },
		"the newest block is cut": func(dir string) {
			require.NoError(t, os.Truncate(msgs(dir, "3.blk"), 300_000))
			require.NoError(t, os.Remove(msgs(dir, "index.db")))
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := stopped(t, 200)
			require.Len(t, blockFiles(t, dir), 3)
			harm(dir)
			s, err := StartServer(ServerOptions{Dir: dir})
			if err == nil {
				last, _ := s.Log().Last(t.Context())
				s.Close()
				t.Fatalf("it started with %d events of 200", last.Position)
			}
			require.ErrorContains(t, err, "anneal log repair")
		})
	}
}

// Following the log fails when the NATS server skips a damaged event.
func TestFollowersRefuseAGap(t *testing.T) {
	dir := stopped(t, 100)
	flip(t, filepath.Join(newDiskSync(dir, "CONTROL", Stream).dir, "1.blk"), 3_000_000)
	s := start(t, func(o *ServerOptions) { o.Dir = dir }) // NoSync: nothing is checked before
	var last uint64
	var failed error
	for e, err := range s.Log().Follow(t.Context(), "", 0) {
		if failed = err; err != nil {
			break
		}
		require.Equal(t, last+1, e.Position)
		if last = e.Position; last == 100 {
			break
		}
	}
	require.ErrorContains(t, failed, "missing or damaged")
	require.Equal(t, domain.DataLoss, domain.CodeOf(failed))
	require.Less(t, last, uint64(100))
}

// Who knows the events and the definition of a Chain computes the same hash.
func TestChainIsWhatItsDefinitionSays(t *testing.T) {
	header := nats.Header{"ce-id": {"e1"}, "Nats-Msg-Id": {"e1"}, "content-type": {"application/json"}, "ce-actor": {"a b"}}
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
	var c Chain
	require.NoError(t, c.extend(storedOf(1, "events.a.b", header, []byte("{}"))))
	attributes, ok := attributesOf([]byte(raw))
	require.True(t, ok)
	require.NoError(t, c.extend(stored{2, "events.a.b", attributes, []byte("{}")}))
	require.Equal(t, want, c.Hash)
	require.Equal(t, Checkpoint{2, "e1"}, c.Checkpoint)
	require.Equal(t, domain.DataLoss, domain.CodeOf(c.extend(stored{position: 4})))
}

// Where NATS syncs each message itself, no round of ours answers a mark that
// cannot be written: the next append and the next event do.
func TestAMarkThatCannotBeWrittenIsNoticed(t *testing.T) {
	s, err := StartServer(ServerOptions{Dir: t.TempDir(), Mark: filepath.Join(t.TempDir(), "mark"), syncAlways: true})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	s.log.mark.sync = func(*os.File) error { return errors.New("input/output error") }
	mustAppend(t, s.Log(), write("a", 0))
	seen, ended := following(t, s.Log(), 0)
	<-seen
	require.Eventually(t, func() bool { return s.log.mark.failure() != nil }, patience, 10*time.Millisecond)
	_, err = s.Log().Append(t.Context(), write("b", 0))
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	require.ErrorContains(t, err, "input/output error")

	other := &JetStream{nc: s.control, js: s.Log().js, ackWait: s.Log().ackWait}
	mustAppend(t, other, write("c", 0))
	require.ErrorContains(t, <-ended, "input/output error")
}

func TestMarkOutlivesATornWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mark")
	_, err := ReadMark(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	h, err := openMark(path, Mark{Durable: 5, Lost: 2, LostAt: 3})
	require.NoError(t, err)
	require.NoError(t, h.add(1, func() stored { return stored{position: 1, header: []attribute{{headerID, "e1"}}} }))
	for position := range uint64(10) {
		require.NoError(t, h.reached(position))
	}
	now := h.now()
	found, err := ReadMark(path)
	require.NoError(t, err)
	require.Equal(t, now, found, "also what is not synced yet, unless the power fails")
	require.Equal(t, uint64(9), found.Durable)
	require.Equal(t, "e1", found.EventID)
	flip(t, path, 100) // the slot that is being written
	found, err = ReadMark(path)
	require.NoError(t, err)
	require.Equal(t, uint64(5), found.Durable)
	flip(t, path, slotGap+100)
	_, err = ReadMark(path)
	require.ErrorIs(t, err, errMarkDamaged)
	require.NoError(t, h.close(Hash{1}))
	found, err = ReadMark(path)
	require.NoError(t, err)
	require.Equal(t, Hash{1}, found.Index)
	require.Equal(t, uint64(2), found.Lost)
}
