package metering

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// smallSpool opens a spool whose files have few entries.
func smallSpool(t *testing.T, dir string, next uint64) *spool {
	t.Helper()
	s, err := openSpool(dir, next)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.close() })
	s.segment = 100
	return s
}

// fill appends n entries, each of 20 bytes, whose content is their index.
func fill(t *testing.T, s *spool, n int) {
	t.Helper()
	for range n {
		index, err := s.append(fmt.Appendf(nil, "%012d", s.end()))
		require.NoError(t, err)
		require.Equal(t, s.end()-1, index)
	}
}

// all reads the spool from an index on, in windows of three entries.
func all(t *testing.T, s *spool, from uint64) (entries []string) {
	t.Helper()
	for {
		some, after, err := s.read(from, 3)
		require.NoError(t, err)
		for _, e := range some {
			if e != nil {
				entries = append(entries, string(e))
			}
		}
		if after == from {
			return entries
		}
		from = after
	}
}

func indexes(from, to uint64) (want []string) {
	for i := from; i <= to; i++ {
		want = append(want, fmt.Sprintf("%012d", i))
	}
	return want
}

func TestSpoolKeepsEntriesInOrder(t *testing.T) {
	dir := t.TempDir()
	s := smallSpool(t, dir, 0)
	require.Empty(t, all(t, s, 1))
	fill(t, s, 23)
	require.Equal(t, indexes(1, 23), all(t, s, 1))
	require.Equal(t, indexes(9, 23), all(t, s, 9))
	require.NoError(t, s.close())

	s = smallSpool(t, dir, 5)
	require.EqualValues(t, 24, s.end())
	fill(t, s, 4)
	require.Equal(t, indexes(1, 27), all(t, s, 1))
	require.NoError(t, os.WriteFile(filepath.Join(dir, cursorFile), []byte("{}"), 0o600))
	require.NoError(t, s.forget(16, filepath.Join(dir, cursorFile)))
	require.EqualValues(t, 16, s.begin())
	require.Equal(t, indexes(16, 27), all(t, s, 16))
	require.Equal(t, indexes(16, 27), all(t, s, 3), "entries that are gone are skipped")
	require.NoError(t, s.close())
	require.EqualValues(t, 100, smallSpool(t, dir, 100).end(), "indexes are never used again")
}

// TestSpoolAfterACrash cuts the newest file at each byte, and changes each byte of a file: the
// spool returns no entry that was not appended, all entries before the damage, and the following
// ones too if no length is damaged.
func TestSpoolAfterACrash(t *testing.T) {
	dir := t.TempDir()
	s := smallSpool(t, dir, 0)
	fill(t, s, 8) // the first file has five entries, the second three
	require.NoError(t, s.close())
	second, err := os.ReadFile(s.path(6))
	require.NoError(t, err)
	require.Len(t, second, 60)
	for size := range len(second) {
		require.NoError(t, os.WriteFile(s.path(6), second[:size], 0o600))
		cut := smallSpool(t, dir, 0)
		require.EqualValues(t, size%20, cut.cut)
		whole := 5 + uint64(size/20)
		require.Equal(t, indexes(1, whole), all(t, cut, 1), size)
		fill(t, cut, 1)
		require.Equal(t, indexes(1, whole+1), all(t, cut, 1), size)
		require.NoError(t, cut.close())
	}
	require.NoError(t, os.WriteFile(s.path(6), second, 0o600))
	first, err := os.ReadFile(s.path(1))
	require.NoError(t, err)
	for at := range first {
		damaged := append([]byte(nil), first...)
		damaged[at] ^= 0x10
		require.NoError(t, os.WriteFile(s.path(1), damaged, 0o600))
		read := smallSpool(t, dir, 0)
		want := append(indexes(1, uint64(at/20)), indexes(6, 8)...)
		if at%20 >= 4 { // the damaged byte is not in the length of the entry
			want = append(append(indexes(1, uint64(at/20)), indexes(uint64(at/20+2), 5)...), indexes(6, 8)...)
		}
		require.Equal(t, want, all(t, read, 1), at)
		require.NoError(t, read.close())
	}
}

// TestAppendWaitsForNoSync checks that entries are appended while a sync is in progress, also
// beyond the end of a file, and while files are removed, because requests wait for append.
func TestAppendWaitsForNoSync(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, cursorFile), []byte("{}"), 0o600))
	for name, sync := range map[string]func(*spool) error{
		"sync":   (*spool).sync,
		"forget": func(s *spool) error { return s.forget(6, filepath.Join(dir, cursorFile)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := smallSpool(t, t.TempDir(), 0)
			fill(t, s, 6)
			begun, release := make(chan struct{}, 10), make(chan struct{})
			s.fsync = func(string) error {
				begun <- struct{}{}
				<-release
				return nil
			}
			result := make(chan error, 1)
			go func() { result <- sync(s) }()
			<-begun
			fill(t, s, 12)
			close(release)
			require.NoError(t, <-result)
			require.NoError(t, s.sync())
			require.False(t, s.dirty)
			require.Equal(t, indexes(6, 18), all(t, s, 6))
		})
	}
}

// TestReadContinues checks that a read that continues where the last one ended does not read the
// entries before it again: they are damaged here.
func TestReadContinues(t *testing.T) {
	s := smallSpool(t, t.TempDir(), 0)
	fill(t, s, 5)
	entries, after, err := s.read(1, 3)
	require.NoError(t, err)
	require.Len(t, entries, 3)
	// zeros instead of entries; append continues at the end of the file
	require.NoError(t, os.WriteFile(s.path(1), make([]byte, 60), 0o600))
	for _, content := range indexes(4, 5) {
		_, err := s.file.Write(frame([]byte(content)))
		require.NoError(t, err)
	}
	require.Equal(t, indexes(4, 5), all(t, s, after))
}
