package server

import (
	"context"
	"os"

	"anneal/eventlog/idempotency"
	"anneal/eventlog/secrets"
)

// sealer opens the vault, which encrypts sealed values. Their data keys, wrapped by the master keys
// of the data directory, are stored in local files or, with a NATS cluster, in a bucket of the
// cluster that all control planes share.
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

// openIdempotency opens the idempotency store: files of the data directory or, with a NATS cluster,
// a bucket that all control planes share. It must be called only once.
func (s *Server) openIdempotency(ctx context.Context) (_ *idempotency.Store, err error) {
	if s.nats == nil {
		s.idempotency, err = idempotency.Open(ctx, s.events.Control())
	} else {
		s.idempotency, err = idempotency.OpenLocal(ctx, s.events.Control(), s.dir.LocalStore("answers", s.logger))
	}
	return s.idempotency, err
}
