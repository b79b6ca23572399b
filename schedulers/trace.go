package schedulers

import (
	"context"

	"anneal/eventlog"
	"anneal/projections"
	"anneal/tracing"
)

// doTraced calls do in a span that continues the trace of the newest event of the resource that the
// step changes.
func (l loop) doTraced(ctx context.Context, request eventlog.Request, step Step, stored signals) (
	change eventlog.Change, err error) {
	ctx, span := tracing.Start(ctx, projections.TraceOf(l.world, step.Commit.Name), tracing.Internal, "schedule")
	if span.Recording() {
		span.Text("anneal.scheduler", l.actor)
		span.Text("anneal.resource", string(step.Commit.Name))
		defer func() { span.End(err) }()
	}
	request.Trace = tracing.Of(ctx, request.Trace)
	return l.do(ctx, request, step, stored)
}
