package server

import (
	"context"
	"os"

	"anneal/eventlog/idempotency"
	"anneal/eventlog/secrets"
)

// sealer returns the vault that seals deletable values. The vault stores its data keys, wrapped by
// the key ring of the data directory, in local files or, with a NATS cluster, in the cluster,
// where control planes share them.
func (s *Server) sealer(ctx context.Context) (_ *secrets.Vault, err error) {
	if s.vault != nil {
		return s.vault, nil
	}
	if err := os.MkdirAll(s.dir.Path("keys"), 0o700); err != nil {
		return nil, err
	}
	ring, err := secrets.OpenKeyRing(s.dir.RingPath())
	if err != nil {
		return nil, err
	}
	if s.nats == nil {
		s.vault, err = secrets.OpenVault(ctx, s.events.Control(), ring)
		return s.vault, err
	}
	if s.vault, err = secrets.OpenLocalVault(ctx, s.events.Control(), ring,
		s.dir.LocalStore("datakeys", s.logger)); err != nil {
		return nil, err
	}
	return s.vault, s.vault.CheckRing(ctx)
}

// openIdempotency opens the idempotency store; it must be called only once. The store is in files
// of the data directory or, with a NATS cluster, in a bucket that control planes share.
func (s *Server) openIdempotency(ctx context.Context) (_ *idempotency.Store, err error) {
	if s.nats == nil {
		s.idempotency, err = idempotency.Open(ctx, s.events.Control())
	} else {
		s.idempotency, err = idempotency.OpenLocal(ctx, s.events.Control(), s.dir.LocalStore("answers", s.logger))
	}
	return s.idempotency, err
}
