package main

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGarbageIsBounded(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	boundGarbage(100<<30, "50GiB")
	require.Equal(t, before, debug.SetMemoryLimit(-1), "the operator's stays")
	boundGarbage(100<<30, "")
	require.EqualValues(t, 90<<30, debug.SetMemoryLimit(-1))
}
