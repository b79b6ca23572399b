package secrets_test

import (
	"anneal/eventlog/servertest"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/eventlog/keyfile"
	"anneal/eventlog/kv"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/secrets"
)

func localStore(dir string) kv.LocalOptions {
	return kv.LocalOptions{Dir: filepath.Join(dir, "datakeys"), CreatedFile: filepath.Join(dir, "datakeys.made")}
}

// migrated opens a vault on local files in dir, which migrates the data keys of the bucket KEYS.
func migrated(t *testing.T, nc *nats.Conn, dir string) *secrets.Vault {
	t.Helper()
	ring := mustOpenRing(t, filepath.Join(dir, "ring"))
	vault, err := secrets.OpenLocalVault(t.Context(), nc, ring, localStore(dir))
	require.NoError(t, err)
	t.Cleanup(func() { _ = vault.Close() })
	return vault
}

// TestKeysOfAnEarlierVersionAreMigrated checks that OpenLocalVault migrates the data keys in the
// bucket KEYS, also after an interrupted migration, and erases them from the files of the bucket.
func TestKeysOfAnEarlierVersionAreMigrated(t *testing.T) {
	dir, store := t.TempDir(), t.TempDir()
	s := servertest.Start(t, func(o *natsserver.Options) { o.Dir, o.NoSync = store, false })
	ring := mustOpenRing(t, filepath.Join(dir, "ring"))
	before := mustOpenVault(t, s.Control(), ring)
	const keys = 20
	values, records := map[string]func(*secrets.Vault){}, [][]byte{}
	for i := range keys {
		sealed, err := before.Seal(t.Context(), owner, fmt.Append(nil, "value ", i))
		require.NoError(t, err)
		record, _, err := before.Keys().Get(t.Context(), sealed.KeyID)
		require.NoError(t, err)
		records = append(records, record)
		values[sealed.KeyID] = func(v *secrets.Vault) {
			t.Helper()
			value, err := v.Open(t.Context(), owner, sealed)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint("value ", i), value.Reveal())
		}
	}
	// Simulates an interrupted migration: some keys are copied, and some of the copied keys are
	// deleted from the bucket.
	half, err := keyfile.Open(localStore(dir).Dir, keyfile.Options{Wipe: true})
	require.NoError(t, err)
	done := 0
	for id := range values {
		if done++; done > keys/2 {
			break
		}
		record, _, err := before.Keys().Get(t.Context(), id)
		require.NoError(t, err)
		_, err = half.Put(t.Context(), id, record, 0)
		require.NoError(t, err)
		if done%2 == 0 {
			require.NoError(t, before.Keys().Delete(t.Context(), id))
		}
	}
	require.NoError(t, half.Close())

	vault := migrated(t, s.Control(), dir)
	for _, opens := range values {
		opens(vault)
	}
	left, err := before.Keys().Keys(t.Context())
	require.NoError(t, err)
	require.Empty(t, left)
	for _, record := range records {
		require.False(t, onDisk(t, store, record))
	}
	require.NoError(t, vault.Close())
	for _, opens := range values {
		opens(migrated(t, s.Control(), dir))
		break
	}
}
