package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestStoredIdentity(t *testing.T) {
	path, other := filepath.Join(t.TempDir(), identityFile), filepath.Join(t.TempDir(), identityFile)
	id, err := storedIdentity(path)
	require.NoError(t, err)
	require.True(t, domain.ValidID(id), id)
	again, err := storedIdentity(path)
	require.NoError(t, err)
	require.Equal(t, id, again, "it stays the same")
	another, err := storedIdentity(other)
	require.NoError(t, err)
	require.NotEqual(t, id, another)
	host, err := os.Hostname()
	require.NoError(t, err)
	require.NotContains(t, id, host)

	require.NoError(t, os.WriteFile(path, []byte("Not an ID\n"), 0o600))
	_, err = storedIdentity(path)
	require.ErrorContains(t, err, "delete the file")
}
