package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

func TestGeneratedFilesAreUpToDate(t *testing.T) {
	for name, want := range files() {
		got := testutil.ReadFile(t, filepath.Join("..", name))
		require.Equal(t, string(want), string(got), "%s differs: run go generate in the package's directory", name)
	}
}
