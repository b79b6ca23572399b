package server

import (
	"context"
	"time"

	"anneal/api/routing"
	"anneal/workers/coordinator"
)

// releaseInterval is the time after which the samples of releases are sent to other gateways again,
// because a message can be lost, and a control plane can start later.
const releaseInterval = time.Second

// gateways returns the service that exchanges notes about requests, and the samples of releases,
// with the gateways of other control planes.
func gateways(s *Server) *coordinator.Gateways {
	gateway := s.handler.Gateway()
	var repeated time.Time
	return &coordinator.Gateways{Conn: s.events.Control(), ID: s.id, Logger: s.logger.With("part", "gateways"),
		Take: func() [][]byte {
			now := time.Now()
			all := now.Sub(repeated) >= releaseInterval
			if all {
				repeated = now
			}
			return append(routing.EncodeNotes(gateway.TakeNotes(now)), gateway.TakeReleases(s.world.View(), all)...)
		},
		Add: func(sender string, message []byte) error {
			if ok, err := routing.AddRelease(s.world.Live(), sender, message, time.Now()); ok {
				return err
			}
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

// trainingNews returns the service that announces to other control planes what this one stores in
// the journals of training runs.
func trainingNews(s *Server) *coordinator.TrainingNews {
	news := &coordinator.TrainingNews{Conn: s.events.Control(), ID: s.id, Journal: s.journal, Live: s.world.Live(),
		Logger: s.logger.With("part", "training news")}
	s.journal.SetAnnounce(news.Announce)
	return news
}

// reportQueues records the lengths of this gateway's admission queues in the live status every
// second, until ctx is done, and makes them known to the other gateways.
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
