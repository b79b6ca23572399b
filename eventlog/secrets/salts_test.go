package secrets_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/eventlog/secrets"
	"anneal/eventlog/servertest"
)

// TestSaltKeys checks that concurrent control planes agree on the salt key of an account, and that
// the reconciler, which erases data keys, sees no salt keys.
func TestSaltKeys(t *testing.T) {
	dir := t.TempDir()
	ring := mustOpenRing(t, filepath.Join(dir, "ring"))
	bucket := mustOpenVault(t, servertest.Start(t).Control(), ring)
	for name, vault := range map[string]*secrets.Vault{"memory": secrets.NewMemoryVault(), "bucket": bucket} {
		t.Run(name, func(t *testing.T) {
			salts, keys := vault.Salts(), make([][]byte, 8)
			var all sync.WaitGroup
			for i := range keys {
				all.Go(func() { keys[i], _ = salts.SaltKey(context.WithoutCancel(t.Context()), "acme") })
			}
			all.Wait()
			for _, key := range keys {
				require.Len(t, key, secrets.KeyBytes)
				require.Equal(t, keys[0], key)
			}
			other, err := salts.SaltKey(t.Context(), "other")
			require.NoError(t, err)
			require.NotEqual(t, keys[0], other)
			for key := range vault.DataKeys(t.Context()) {
				t.Errorf("%s is no data key", key.ID)
			}
		})
	}
}

// TestSaltKeysAreRewrapped checks that salt keys survive a rotation of the master key.
func TestSaltKeysAreRewrapped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ring")
	nc := servertest.Start(t).Control()
	open := func(ring *secrets.KeyRing, err error) secrets.SaltStore {
		require.NoError(t, err)
		vault := mustOpenVault(t, nc, ring)
		_, err = vault.Rewrap(t.Context())
		require.NoError(t, err)
		return vault.Salts()
	}
	before, err := open(secrets.OpenKeyRing(path)).SaltKey(t.Context(), "acme")
	require.NoError(t, err)
	open(secrets.RotateKeyRing(path))
	require.NoError(t, secrets.RetireKeys(path))
	after, err := open(secrets.OpenKeyRing(path)).SaltKey(t.Context(), "acme")
	require.NoError(t, err)
	require.Equal(t, before, after)
}
