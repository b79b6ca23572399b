package server

import (
	"context"
	"time"

	"anneal/api/events"
	"anneal/blobs/outbound"
	"anneal/domain"
	"anneal/workers/subscriptions"
)

// openSubscriptions starts the service that delivers events to subscriptions. The control planes of
// a NATS cluster share a lease, so that only one of them delivers.
func openSubscriptions(ctx context.Context, s *Server) error {
	sealer, err := s.sealer(ctx)
	if err != nil {
		return err
	}
	runner := &subscriptions.Runner{Log: s.events.Log(), World: s.world, Blobs: s.blobs, Open: observed(s, sealer).Open,
		Webhook: outbound.KeepAliveClient(s.flags.fetchPrivate, subscriptions.RequestTimeout),
		Store:   outbound.Client(s.flags.fetchPrivate, taskTimeout),
		Visible: events.ForReaders(domain.NodeMask{Key: s.handler.Pepper}), Now: time.Now,
		Logger: s.logger, Metrics: subscriptions.NewMetrics(s.metrics, time.Now), Policy: subscriptions.DefaultPolicy}
	runner.Policy.FileInterval = s.flags.fileInterval
	s.services.start("subscriptions", func(ctx context.Context) error {
		if s.nats != nil {
			return runner.Run(ctx)
		}
		return holdLease(ctx, s.idempotency, "system.subscriptions", runner.Run)
	})
	return nil
}
