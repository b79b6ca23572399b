package node

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMemoryLimit(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	setMemoryLimit(100<<30, "50GiB")
	require.Equal(t, before, debug.SetMemoryLimit(-1), "GOMEMLIMIT is kept")
	setMemoryLimit(100<<30, "")
	require.EqualValues(t, 90<<30, debug.SetMemoryLimit(-1))
}
