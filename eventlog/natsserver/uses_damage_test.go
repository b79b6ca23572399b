package natsserver

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog/integrity"
	"anneal/eventlog/metering"
	"anneal/internal/testutil"
)

// TestDamagedUsesAreDiscarded flips a byte in the block of the times of last use, which the server
// would find only when it rewrites the block, and then store no more messages at all.
func TestDamagedUsesAreDiscarded(t *testing.T) {
	dir := t.TempDir()
	use := func() {
		s := mustStart(t, Options{Dir: dir})
		defer s.Close()
		uses, err := metering.OpenLastUsed(t.Context(), s.Control())
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, uses.Keep(t.Context(), domain.Name("accounts/acme/apiKeys/k"), time.Now()))
		}
	}
	use()
	block := filepath.Join(integrity.BlockDir(dir, "CONTROL", metering.UsesStream), "1.blk")
	content := testutil.ReadFile(t, block)
	content[len(content)-20] ^= 1
	require.NoError(t, os.WriteFile(block, content, 0o600))
	require.NoError(t, integrity.DiscardDamaged(dir, "EVENTS", slog.New(slog.DiscardHandler)))
	use()
	repaired := testutil.ReadFile(t, block)
	require.NotContains(t, string(repaired), string(content))
}
