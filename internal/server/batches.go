package server

import (
	"context"
	"time"

	"anneal/api"
	"anneal/domain"
	"anneal/workers/batches"
)

// openBatches starts the service that runs batches. The control planes of a NATS cluster share a
// lease, so that only one of them runs batches.
func openBatches(s *Server) {
	runner := &batches.Runner{Log: s.events.Log(), World: s.world, Blobs: s.blobs, Gateway: gateway{s.handler},
		Now: time.Now, Logger: s.logger}
	s.services.start("batches", func(ctx context.Context) error {
		if s.nats != nil {
			return runner.Run(ctx)
		}
		return holdLease(ctx, s.idempotency, "system.batches", runner.Run)
	})
}

// gateway implements batches.Gateway: it sends the requests of batches through the HTTP handlers of
// the api.
type gateway struct{ api *api.Server }

// Resolve implements batches.Gateway.
func (g gateway) Resolve(ctx context.Context, key domain.Name, path, model string) (domain.Name, error) {
	return g.api.ResolveInBackground(ctx, api.BackgroundRequest{Key: key, Path: path}, model)
}

// Load implements batches.Gateway.
func (g gateway) Load(deployment domain.Name) (slots int, busy bool) { return g.api.LoadOf(deployment) }

// Send implements batches.Gateway.
func (g gateway) Send(ctx context.Context, q batches.Request) batches.Response {
	r := g.api.ServeInBackground(ctx, api.BackgroundRequest{Key: q.Key, ID: q.ID, Trace: q.Trace, Path: q.Path,
		Body: q.Body})
	out := batches.Response{Status: r.Status, Body: r.Body, Waits: r.Waits}
	switch r.Code {
	case domain.Unavailable:
		out.Unreachable = !r.Waits
	case domain.Internal, domain.Unknown, domain.DeadlineExceeded, domain.Aborted, domain.DataLoss:
		out.Failed = !r.Waits
	}
	return out
}
