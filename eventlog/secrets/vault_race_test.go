package secrets_test

import (
	"anneal/eventlog/servertest"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestShredIsIdempotentUnderConcurrency checks that concurrent calls of Shred for one data key,
// also from different processes, all succeed.
func TestShredIsIdempotentUnderConcurrency(t *testing.T) {
	ring := mustOpenRing(t, filepath.Join(t.TempDir(), "ring"))
	vault := mustOpenVault(t, servertest.Start(t).Control(), ring)
	for range 20 {
		sealed, err := vault.Seal(t.Context(), owner, []byte("value"))
		require.NoError(t, err)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { assert.NoError(t, vault.Shred(t.Context(), sealed.KeyID)) })
		}
		all.Wait()
	}
}
