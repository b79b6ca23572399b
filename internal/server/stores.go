package server

import (
	"context"
	"os"

	"anneal/eventlog"
)

// sealer seals what must be deletable. Its data keys, wrapped by the key ring of
// this folder, lie in files of their own, or in the NATS cluster of the log,
// whose control planes share them.
func (s *Server) sealer(ctx context.Context) (_ *eventlog.Vault, err error) {
	if s.vault != nil {
		return s.vault, nil
	}
	if err := os.MkdirAll(s.dir.Path("keys"), 0o700); err != nil {
		return nil, err
	}
	ring, err := eventlog.OpenKeyRing(s.dir.RingPath())
	if err != nil {
		return nil, err
	}
	if s.nats == nil {
		s.vault, err = eventlog.OpenVault(ctx, s.events.Control(), ring)
		return s.vault, err
	}
	if s.vault, err = eventlog.OpenLocalVault(ctx, s.events.Control(), ring, s.dir.LocalStore("datakeys", s.logger)); err != nil {
		return nil, err
	}
	return s.vault, s.vault.CheckRing(ctx)
}

// openAnswers opens what was answered under idempotency keys: files of this
// folder, or a bucket of the cluster, whose control planes share it.
func (s *Server) openAnswers(ctx context.Context) (_ *eventlog.IdempotencyStore, err error) {
	if s.nats == nil {
		s.answers, err = eventlog.OpenAnswers(ctx, s.events.Control())
	} else {
		s.answers, err = eventlog.OpenLocalAnswers(ctx, s.events.Control(), s.dir.LocalStore("answers", s.logger))
	}
	return s.answers, err
}
