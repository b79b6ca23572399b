package eventlog

import (
	"context"

	"anneal/domain"
	"anneal/tracing"
)

// startDecision starts the span of one call of Do: a child of the span in the context or, if there
// is none, of the request's trace context.
func startDecision(ctx context.Context, req Request, intent domain.Intent) (context.Context, tracing.Span) {
	ctx, span := tracing.Start(ctx, req.Trace, tracing.Internal, "decide")
	if span.Recording() {
		span.Text("anneal.resource", string(intent.Name))
		span.Text("anneal.actor", req.Actor)
		span.Text("anneal.cause", req.Cause)
	}
	return ctx, span
}

// endDecision ends the span of one call of Do with its result.
func endDecision(span tracing.Span, change *Change, err *error) {
	if span.Recording() {
		span.Text("anneal.event.type", change.Event.Type)
		span.Int("anneal.position", int64(change.Event.Position))
		span.End(*err)
	}
}

// appendTraced appends an event to the log, in a span of its own.
func appendTraced(ctx context.Context, log Log, w Write) (position uint64, err error) {
	ctx, span := tracing.Start(ctx, w.Trace, tracing.Client, "append")
	position, err = log.Append(ctx, w)
	if span.Recording() {
		span.Text("anneal.event.id", w.ID)
		span.Text("anneal.event.type", w.Type)
		span.Int("anneal.position", int64(position))
		span.End(err)
	}
	return position, err
}
