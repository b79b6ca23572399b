package server

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/integrity"
	"anneal/internal/datadir"
	"anneal/internal/testutil"
)

// contentOf returns the digest of each file in a directory, by path. It omits the lock.
func contentOf(t *testing.T, dir string) map[string]string {
	found := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || entry.Name() == "lock" {
			return err
		}
		content, err := os.ReadFile(path)
		found[path] = fmt.Sprintf("%x", sha256.Sum256(content))
		return err
	}))
	return found
}

// TestVerifyChangesNothing checks that the verification of a stopped server changes no file, and
// that it reports damage that a start would refuse, also where only the newest snapshot shows it. A
// rotation of the master key, which starts NATS, is refused before NATS opens the damaged files.
func TestVerifyChangesNothing(t *testing.T) {
	dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
	var last uint64
	require.NoError(t, serving(t, string(dir), func(ctx context.Context, s *Server) {
		require.NoError(t, bootstrapDo(ctx, s, domain.Accounts, "accounts/acme",
			domain.CreateAccount{AccountSpec: domain.AccountSpec{DisplayName: "Acme", AccountType: domain.Enterprise}}))
		last = s.world.Position()
	}))
	verify := func() Verification {
		t.Helper()
		before := contentOf(t, string(dir))
		result, err := Verify(t.Context(), dir)
		require.NoError(t, err)
		require.Equal(t, before, contentOf(t, string(dir)))
		return result
	}
	intact := verify()
	require.True(t, intact.Equal)
	require.Equal(t, "snapshot", intact.Against)
	require.Equal(t, last, intact.Folded.Position)
	require.NoError(t, intact.Err(dir))

	block := filepath.Join(integrity.BlockDir(dir.Path("nats"), "CONTROL", eventlog.Stream), "1.blk")
	content := testutil.ReadFile(t, block)
	require.NoError(t, os.WriteFile(block, content[:len(content)-1], 0o600))
	require.NoError(t, os.Remove(dir.Path("nats.mark")))
	damaged := verify()
	require.Len(t, damaged.Log.Missing, 1, "%+v", damaged.Log)
	require.Equal(t, [2]uint64{last, last}, [2]uint64{damaged.Log.Missing[0].First, damaged.Log.Missing[0].Last})
	require.ErrorContains(t, damaged.Err(dir), "the log is damaged")

	before := contentOf(t, string(dir))
	_, err := RotateKey(t.Context(), dir, "", nil)
	require.True(t, integrity.IsDamaged(err), "%v", err)
	require.Equal(t, before, contentOf(t, string(dir)), "nothing is cut off")
}
