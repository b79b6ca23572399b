package server

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/internal/datadir"
	"anneal/internal/node"
	"anneal/internal/testutil"
)

// TestKeysAreRotated checks that after a rotation sealed values can be opened with the new master
// key only, and that a rotation is rejected while the server runs, without effect on the server.
func TestKeysAreRotated(t *testing.T) {
	dir, owner := datadir.Dir(t.TempDir()), domain.Name("accounts/default/secrets/token")
	flags := DefaultFlags()
	flags.Data, flags.Listen, flags.worker, flags.Node.Engine.Speech = string(dir), "127.0.0.1:0", false, node.NoSpeech
	running := func(do func(ctx context.Context, s *Server)) {
		ctx, stop := context.WithCancel(t.Context())
		s, err := Start(ctx, flags, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		do(ctx, s)
		stop()
		require.NoError(t, s.Wait(ctx))
	}
	var sealed []domain.Sealed
	running(func(ctx context.Context, s *Server) {
		sealer, err := s.sealer(ctx)
		require.NoError(t, err)
		for _, value := range []string{"one", "two"} {
			one, err := sealer.Seal(ctx, owner, []byte(value))
			require.NoError(t, err)
			sealed = append(sealed, one)
		}
		_, err = RotateKey(ctx, dir, "", nil)
		require.ErrorContains(t, err, "in use by process")
	})
	before := testutil.ReadFile(t, dir.RingPath())
	wrapped, err := RotateKey(t.Context(), dir, "", nil)
	require.NoError(t, err)
	require.Equal(t, 2, wrapped)
	after := testutil.ReadFile(t, dir.RingPath())
	require.Equal(t, 1, strings.Count(string(after), "\n"))
	require.NotEqual(t, before, after)
	running(func(ctx context.Context, s *Server) {
		sealer, err := s.sealer(ctx)
		require.NoError(t, err)
		for i, value := range []string{"one", "two"} {
			opened, err := sealer.Open(ctx, owner, sealed[i])
			require.NoError(t, err)
			require.Equal(t, value, opened.Reveal())
		}
	})
	_, err = RotateKey(t.Context(), datadir.Dir(t.TempDir()), "", nil)
	require.ErrorContains(t, err, "is not a server's data directory")
}
