package server

import (
	"context"

	"anneal/projections"
	"anneal/tracing"
)

// openTraces returns the context of all services, which has the tracer of this process.
func openTraces(ctx context.Context, s *Server) (context.Context, error) {
	tracer, stop, err := s.flags.traces.Open(ctx, "anneal", s.flags.Node.Version, s.logger)
	s.stopTraces = stop
	return tracing.NewContext(context.WithoutCancel(ctx), tracer), err
}

// keepTraces makes the world keep trace contexts if this process has a tracer.
func keepTraces(ctx context.Context, world *projections.World) {
	if tracing.Enabled(ctx) {
		projections.KeepTraces(world)
	}
}
