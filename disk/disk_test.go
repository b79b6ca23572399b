package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestSpaceIsKeptFreeForMoreImportantUses(t *testing.T) {
	free := uint64(Files)
	s := New(func() (uint64, error) { return free, nil })
	for _, use := range []WriteClass{Files, Requests, Events} {
		free = uint64(use)
		require.NoError(t, s.Check(use, 0))
		require.NoError(t, s.Check(use/2, 1), "a more important use is allowed")
		err := s.Check(use, 1)
		var e *domain.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, domain.ResourceExhausted, e.Code)
		require.Equal(t, Full, e.Reason)
		require.Contains(t, e.Message, "delete resources that you do not need")
	}
	free = uint64(Files) + 10
	done, err := s.Reserve(Files, 6)
	require.NoError(t, err)
	require.Error(t, s.Check(Files, 5), "reserved bytes count")
	require.NoError(t, s.Check(Requests, 5))
	done()
	done()
	require.NoError(t, s.Check(Files, 10))
}

func TestUnknownSpaceIsUnlimited(t *testing.T) {
	require.NoError(t, (*Space)(nil).Check(Files, 1<<40))
	require.NoError(t, New(func() (uint64, error) { return 0, errors.New("unknown") }).Check(Files, 1))
	require.Nil(t, On(filepath.Join(t.TempDir(), "missing")))
}

func TestFilesOfOneDiskShareItsSpace(t *testing.T) {
	dir := t.TempDir()
	require.Same(t, On(dir), On(dir))
	file, err := Create(filepath.Join(dir, "f"))
	require.NoError(t, err)
	require.Same(t, On(dir), file.space)
	n, err := file.Write(make([]byte, 3<<20))
	require.NoError(t, err)
	require.Equal(t, 3<<20, n)
	require.Zero(t, On(dir).reserved)

	file.space = New(func() (uint64, error) { return uint64(Files), nil })
	n, err = file.Write([]byte("x"))
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(err))
	require.Zero(t, n)
	_, err = file.ReadFrom(strings.NewReader("x"))
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(err))
	require.NoError(t, file.Close())
}

// TestFdatasyncDuringClose checks that a sync never sees the descriptor of a closed file, which may
// be that of another one. The race detector reports a sync that does.
func TestFdatasyncDuringClose(t *testing.T) {
	for range 50 {
		file, err := os.Create(filepath.Join(t.TempDir(), "file"))
		require.NoError(t, err)
		var group sync.WaitGroup
		group.Go(func() {
			for Fdatasync(file) == nil {
			}
		})
		require.NoError(t, file.Close())
		group.Wait()
	}
}

// TestUnknownSpace checks that the space of a directory that does not exist is unknown, and
// unlimited.
func TestUnknownSpace(t *testing.T) {
	space := On(filepath.Join(t.TempDir(), "missing"))
	_, known := space.Free()
	require.False(t, known)
	require.NoError(t, space.Check(Requests, 1<<40))
}
