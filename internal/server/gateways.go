package server

import (
	"time"

	"anneal/api/routing"
	"anneal/workers/coordinator"
)

// gateways returns the service that exchanges notes about requests with the gateways of other control
// planes.
func gateways(s *Server) *coordinator.Gateways {
	gateway := s.handler.Gateway()
	return &coordinator.Gateways{Conn: s.events.Control(), ID: s.id, Logger: s.logger.With("part", "gateways"),
		Take: func() [][]byte { return routing.EncodeNotes(gateway.TakeNotes(time.Now())) },
		Add: func(message []byte) error {
			notes, err := routing.DecodeNotes(message)
			if err != nil {
				return err
			}
			view := s.world.View()
			for _, note := range notes {
				if row, ok := view.Deployments.Get(note.Deployment); ok {
					gateway.AddNote(row, note, time.Now)
				}
			}
			return nil
		}}
}
