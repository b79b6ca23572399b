package server

import (
	"context"
	"os"

	"anneal/eventlog/idempotency"
	"anneal/eventlog/secrets"
)

// sealer seals what must be deletable. Its data keys, wrapped by the key ring of
// this folder, lie in files of their own, or in the NATS cluster of the log,
// whose control planes share them.
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
	if s.vault, err = secrets.OpenLocalVault(ctx, s.events.Control(), ring, s.dir.LocalStore("datakeys", s.logger)); err != nil {
		return nil, err
	}
	return s.vault, s.vault.CheckRing(ctx)
}

// openAnswers opens what was answered under idempotency keys: files of this
// folder, or a bucket of the cluster, whose control planes share it.
func (s *Server) openAnswers(ctx context.Context) (_ *idempotency.Store, err error) {
	if s.nats == nil {
		s.answers, err = idempotency.Open(ctx, s.events.Control())
	} else {
		s.answers, err = idempotency.OpenLocal(ctx, s.events.Control(), s.dir.LocalStore("answers", s.logger))
	}
	return s.answers, err
}
