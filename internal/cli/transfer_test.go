package cli

import (
	"bytes"
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

// TestProgressNeverExceedsItsTotal checks that the printed total grows with files that the total did
// not contain, such as the tokenizer of the base model in the download of an adapter.
func TestProgressNeverExceedsItsTotal(t *testing.T) {
	var out bytes.Buffer
	p := &progress{out: &out, total: 2000}
	p.add("weights", 2000)
	p.done("weights")
	p.add("tokenizer", 500)
	p.done("tokenizer")
	require.Equal(t, "2.0 kB of 2.0 kB  weights\n2.5 kB of 2.5 kB  tokenizer\n", out.String())
}
