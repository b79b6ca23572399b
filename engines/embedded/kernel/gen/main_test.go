package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGeneratedFilesAreUpToDate(t *testing.T) {
	for name, want := range files() {
		got, err := os.ReadFile(filepath.Join("..", name))
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), "%s differs: run go generate in the package's directory", name)
	}
}
