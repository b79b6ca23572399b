package natsserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/integrity"
	"anneal/eventlog/logtest"
	"anneal/internal/testutil"
)

// stopped returns the directory of a stopped server whose log has a number of events of 100 KB
// each. 200 events fill three blocks.
func stopped(t *testing.T, events int) (dir string) {
	t.Helper()
	made, _ := stoppedOnce.LoadOrStore(events, sync.OnceValues(func() (string, error) { return makeStopped(events) }))
	template, err := made.(func() (string, error))()
	require.NoError(t, err)
	dir = filepath.Join(t.TempDir(), "nats")
	require.NoError(t, os.CopyFS(dir, os.DirFS(template)))
	require.NoError(t, os.Rename(filepath.Join(dir, "mark"), integrity.MarkPath(dir)))
	return dir
}

var stoppedOnce sync.Map // by number of events: function that creates the directory once

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
	s, err := Start(Options{Dir: dir, Mark: filepath.Join(dir, "mark")})
	if err != nil {
		return dir, err
	}
	defer s.Close()
	for i := range events {
		w := logtest.Write(fmt.Sprintf("w%d", i), 0)
		w.Data = []byte(`{"pad":"` + strings.Repeat("x", 100<<10) + `"}`)
		if _, err := s.Log().Append(context.Background(), w); err != nil {
			return dir, err
		}
	}
	// follow all events, so that the running hash includes them
	for e, err := range s.Log().Follow(context.Background(), "", 0) {
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
	paths := testutil.Glob(t, filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), "*.blk"))
	require.NotEmpty(t, paths)
	return paths
}

func flip(t *testing.T, path string, at int64) {
	content := testutil.ReadFile(t, path)
	content[at] ^= 0x10
	require.NoError(t, os.WriteFile(path, content, 0o600))
}

// TestDamageIsNotCutOff checks that the server does not start with a damaged or incomplete log. The
// NATS server alone would truncate a block at the damage and start.
func TestDamageIsNotCutOff(t *testing.T) {
	msgs := func(dir, name string) string {
		return filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), name)
	}
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
		"a block is missing":              func(dir string) { require.NoError(t, os.Remove(msgs(dir, "2.blk"))) },
		"the log is missing":              func(dir string) { require.NoError(t, os.RemoveAll(filepath.Dir(msgs(dir, "")))) },
		"all of NATS's files are missing": func(dir string) { require.NoError(t, os.RemoveAll(dir)) },
		"the newest block is cut": func(dir string) {
			require.NoError(t, os.Truncate(msgs(dir, "3.blk"), 300_000))
			require.NoError(t, os.Remove(msgs(dir, "index.db")))
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := stopped(t, 200)
			require.Len(t, blockFiles(t, dir), 3)
			harm(dir)
			s, err := Start(Options{Dir: dir})
			if err == nil {
				last, _ := s.Log().Last(t.Context())
				s.Close()
				t.Fatalf("the server started with %d events of 200", last.Position)
			}
			require.ErrorContains(t, err, "anneal log repair")
		})
	}
}

// TestFollowersRefuseAGap checks that Follow returns DataLoss when the NATS server skips a damaged
// event.
func TestFollowersRefuseAGap(t *testing.T) {
	dir := stopped(t, 100)
	flip(t, filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), "1.blk"), 3_000_000)
	// start sets NoSync, so that the files are not checked before the start
	s := start(t, func(o *Options) { o.Dir = dir })
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

// TestAMarkThatCannotBeWrittenIsReported checks that the next append and the next followed event
// fail after the mark could not be written, when NATS syncs each message itself and there are no
// sync rounds to report the error.
func TestAMarkThatCannotBeWrittenIsReported(t *testing.T) {
	s := mustStart(t, Options{Dir: t.TempDir(), Mark: filepath.Join(t.TempDir(), "mark"), syncAlways: true})
	t.Cleanup(s.Close)
	s.mark.Sync = func(*os.File) error { return errors.New("input/output error") }
	logtest.Append(t, s.Log(), logtest.Write("a", 0))
	seen, ended := followingLog(t, s.Log(), 0)
	<-seen
	require.Eventually(t, func() bool { return s.mark.Err() != nil }, startTimeout, 10*time.Millisecond)
	_, err := s.Log().Append(t.Context(), logtest.Write("b", 0))
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	require.ErrorContains(t, err, "input/output error")

	other, err := eventlog.NewJetStream(s.control)
	require.NoError(t, err)
	logtest.Append(t, other, logtest.Write("c", 0))
	require.ErrorContains(t, <-ended, "input/output error")
}

// followingLog follows the log after a position in a goroutine. seen receives the events, and ended
// receives the error with which Follow ends.
func followingLog(t *testing.T, log *eventlog.JetStream, after uint64) (seen <-chan eventlog.Event,
	ended <-chan error) {
	events, last := make(chan eventlog.Event, 100), make(chan error, 1)
	go func() {
		for e, err := range log.Follow(t.Context(), "", after) {
			if err != nil {
				last <- err
				return
			}
			events <- e
		}
	}()
	return events, last
}
