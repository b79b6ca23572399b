package cli

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDiskFull(t *testing.T) {
	for _, cause := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		err := diskFull(fmt.Errorf("write: %w", &os.PathError{Op: "write", Path: "/tmp/part", Err: cause}), "polite.gguf")
		require.ErrorContains(t, err, "the disk of polite.gguf is full")
		require.ErrorIs(t, err, cause)
		require.Contains(t, hintOf(err), "free some space, or write to another disk")
	}
	other := errors.New("other")
	require.Equal(t, other, diskFull(other, "polite.gguf"))
	require.NoError(t, diskFull(nil, "polite.gguf"))
}
