package coordinator

import (
	"context"

	"anneal/domain"
	"anneal/projections"
	"anneal/tracing"
)

// traceOf returns the trace context of the first intent whose resource has one; the zero value for none.
func (r recorder) traceOf(intents []domain.Intent) domain.Trace {
	for _, intent := range intents {
		if trace := projections.TraceOf(r.world, intent.Name); trace != (domain.Trace{}) {
			return trace
		}
	}
	return domain.Trace{}
}

// startAssign starts the span of assigning work to a node, in the trace of the job or deployment
// that the work belongs to. The result delivered is the trace context for the agent.
func (a *assigner) startAssign(ctx context.Context, node string, resource domain.Name, allocation string) (
	_ context.Context, delivered domain.Trace, span tracing.Span) {
	ctx, span = tracing.Start(ctx, projections.TraceOf(a.world, resource), tracing.Client, "assign")
	span.Text("anneal.node", node)
	span.Text("anneal.resource", string(resource))
	span.Text("anneal.allocation", allocation)
	return ctx, tracing.Of(ctx, domain.Trace{}), span
}
