package server

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/blobs/reconcile"
	"anneal/domain"
	"anneal/eventlog/transparency"
)

// TestExistingLogGetsItsTree removes the tree of a server, as in a data directory of an earlier
// version. The next start builds the same tree from the log.
func TestExistingLogGetsItsTree(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	var old transparency.Checkpoint
	require.NoError(t, serving(t, dir, func(ctx context.Context, s *Server) {
		for _, id := range []string{"acme", "other"} {
			require.NoError(t, bootstrapDo(ctx, s, domain.Accounts, domain.NewName("", "accounts", id),
				domain.CreateAccount{AccountSpec: domain.AccountSpec{DisplayName: id, AccountType: domain.Enterprise}}))
		}
		require.NoError(t, s.proofs.WaitFor(ctx, s.world.Position()))
		var err error
		_, old, err = s.proofs.Checkpoint()
		require.NoError(t, err)
	}))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, treeDir)))
	require.NoError(t, serving(t, dir, func(ctx context.Context, s *Server) {
		require.NoError(t, s.proofs.WaitFor(ctx, s.world.Position()))
		text, err := LogKey(s.dir)
		require.NoError(t, err)
		key, err := transparency.ParseKey(text)
		require.NoError(t, err)
		for position := uint64(1); position <= old.Size; position++ {
			b, err := s.proofs.Prove(ctx, position, old.Size, true)
			require.NoError(t, err)
			v, err := b.Verify(key)
			require.NoError(t, err)
			require.Equal(t, old.Root, v.SinceRoot)
		}
	}))
}

// TestServerStartsWithoutATree checks that a tree that cannot be stored stops nothing else.
func TestServerStartsWithoutATree(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, treeDir), nil, 0o600))
	require.NoError(t, serving(t, dir, func(ctx context.Context, s *Server) {
		require.NoError(t, bootstrapDo(ctx, s, domain.Accounts, domain.NewName("", "accounts", "acme"),
			domain.CreateAccount{AccountSpec: domain.AccountSpec{DisplayName: "acme", AccountType: domain.Enterprise}}))
		_, _, err := s.proofs.Checkpoint()
		require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	}))
}

// TestProofsHoldAfterErasure deletes a secret, whose value the reconciler then makes unrecoverable by
// erasing its data key. Proofs from before remain valid, the event with the sealed value can still be
// proven, and a tree that is computed again from the log is the same.
func TestProofsHoldAfterErasure(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	var before transparency.Bundle
	var old transparency.Checkpoint
	var created uint64
	verify := func(s *Server, b transparency.Bundle) transparency.Verified {
		text, err := LogKey(s.dir)
		require.NoError(t, err)
		key, err := transparency.ParseKey(text)
		require.NoError(t, err)
		v, err := b.Verify(key)
		require.NoError(t, err)
		return v
	}
	require.NoError(t, serving(t, dir, func(ctx context.Context, s *Server) {
		secret := corpusSecret(0)
		sealer, err := s.sealer(ctx)
		require.NoError(t, err)
		sealed, err := sealer.Seal(ctx, secret, []byte("value"))
		require.NoError(t, err)
		require.NoError(t, bootstrapDo(ctx, s, domain.Secrets, secret,
			domain.CreateSecret{KeyName: "TOKEN", Value: sealed}))
		created = s.world.View().Secrets.Version(secret)
		before, err = s.proofs.Prove(ctx, created, 0, true)
		require.NoError(t, err)
		old = verify(s, before).Checkpoint

		require.NoError(t, bootstrapDo(ctx, s, domain.Secrets, secret, domain.RequestDeletion(domain.Secrets)))
		require.NoError(t, bootstrapDo(ctx, s, domain.Secrets, secret, domain.DeleteSecret{}))
		reconciler := reconcile.New(reconcile.Options{Log: s.events.Log(), World: s.world, Blobs: s.blobs, Keys: sealer})
		require.NoError(t, reconciler.Reconcile(ctx, 0))
		_, err = sealer.Open(ctx, secret, sealed)
		require.Equal(t, domain.NotFound, domain.CodeOf(err), "the data key is erased")
		verify(s, before)
		after, err := s.proofs.Prove(ctx, created, old.Size, true)
		require.NoError(t, err)
		require.Equal(t, before.Event, after.Event)
		require.Equal(t, old.Root, verify(s, after).SinceRoot)
	}))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, treeDir)))
	require.NoError(t, serving(t, dir, func(ctx context.Context, s *Server) {
		require.NoError(t, s.proofs.WaitFor(ctx, s.world.Position()))
		again, err := s.proofs.Prove(ctx, created, old.Size, true)
		require.NoError(t, err)
		require.Equal(t, before.Event, again.Event)
		require.Equal(t, old.Root, verify(s, again).SinceRoot)
		verify(s, before)
	}))
}
