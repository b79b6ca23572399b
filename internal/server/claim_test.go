package server

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/datadir"
	"anneal/internal/testutil"
)

// TestStartWithADamagedSnapshotThatIsAhead checks that a server starts when the header of its newest
// snapshot names a position that the log does not have, but the checksum shows that the file is damaged;
// and that the same header of an intact snapshot is refused.
func TestStartWithADamagedSnapshotThatIsAhead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	position := uint64(0)
	require.NoError(t, serving(t, dir, func(_ context.Context, s *Server) { position = s.world.Position() }))
	paths := testutil.Glob(t, datadir.Dir(dir).Path("snapshots", "snapshot-*"))
	newest := paths[len(paths)-1]
	intact := testutil.ReadFile(t, newest)
	ahead := bytes.Replace(intact, fmt.Appendf(nil, `"position":%d`, position), []byte(`"position":900000`), 1)
	require.NotEqual(t, intact, ahead)
	damaged := filepath.Join(filepath.Dir(newest), "snapshot-00000000000000900000.jsonl")
	require.NoError(t, os.WriteFile(damaged, ahead, 0o600))
	require.NoError(t, serving(t, dir, func(_ context.Context, s *Server) {
		require.GreaterOrEqual(t, s.world.Position(), position)
	}))

	require.NoError(t, os.WriteFile(damaged, intact, 0o600))
	falsify(t, datadir.Dir(dir), fmt.Sprintf(`"position":%d`, position), `"position":900000`)
	err := serving(t, dir, func(context.Context, *Server) {})
	require.ErrorContains(t, err, "900000")
}
