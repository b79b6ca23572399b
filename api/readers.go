package api

import (
	"context"

	"anneal/api/request"
	"anneal/domain"
	"anneal/eventlog/natsserver"
)

// ReaderConnected records that an API key was used, when a reader of events connects to NATS with
// that key.
func (s *Server) ReaderConnected(r natsserver.Reader) {
	name := domain.NewName(r.Account, domain.APIKeys.Collection, r.ID)
	c := &request.Call{Core: s.core, Principal: request.Principal{Key: name}, Time: s.core.Now().UTC(),
		Ctx: context.Background(), ID: "NATS"}
	c.KeyUsed()
}
