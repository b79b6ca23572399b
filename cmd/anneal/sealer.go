package main

import (
	"context"
	"os"

	"anneal/eventlog"
)

// sealer seals what must be deletable. Its data keys lie in the log's NATS
// server, wrapped by the key ring of this folder.
func (s *server) sealer(ctx context.Context) (*eventlog.Vault, error) {
	if err := os.MkdirAll(s.folder.path("keys"), 0o700); err != nil {
		return nil, err
	}
	ring, err := eventlog.OpenKeyRing(s.folder.ringPath())
	if err != nil {
		return nil, err
	}
	return eventlog.OpenVault(ctx, s.events.Control(), ring)
}
