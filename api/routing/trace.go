package routing

import (
	"context"

	"anneal/domain"
	"anneal/tracing"
)

// startSend starts the span of sending a request to a replica.
func startSend(ctx context.Context, q Request, replica domain.Replica) (context.Context, tracing.Span) {
	ctx, span := tracing.Start(ctx, domain.Trace{}, tracing.Client, "send to replica")
	span.Text("anneal.deployment", string(q.Deployment))
	span.Text("anneal.replica", replica.ID)
	if span.Recording() {
		span.Text("anneal.node", replica.Node.ID())
	}
	return ctx, span
}
