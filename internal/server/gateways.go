package server

import (
	"context"
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
				if note.Waiting != nil {
					s.world.Live().QueueLength(note.Deployment, note.Replica, *note.Waiting, time.Now())
					continue
				}
				if row, ok := view.Deployments.Get(note.Deployment); ok {
					gateway.AddNote(row, note, time.Now)
				}
			}
			return nil
		}}
}

// reportQueues records the lengths of this gateway's admission queues in the live status every second,
// until ctx is done, and makes them known to the other gateways.
func reportQueues(ctx context.Context, s *Server) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		for _, queue := range s.handler.Gateway().QueueLengths(s.id) {
			s.world.Live().QueueLength(queue.Deployment, s.id, queue.Waiting, time.Now())
		}
	}
}
