package engines

import (
	"context"

	"anneal/domain"
	"anneal/tracing"
)

type traceKey struct{}

// WithTrace returns a context with the trace of a request. The engine sends the trace to its model
// server.
func WithTrace(ctx context.Context, trace domain.Trace) context.Context {
	if trace == (domain.Trace{}) {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, trace)
}

// TraceOf returns the trace context of the recorded span in ctx. If there is none, it returns the one of
// WithTrace, or the zero value.
func TraceOf(ctx context.Context) domain.Trace {
	trace, _ := ctx.Value(traceKey{}).(domain.Trace)
	return tracing.Of(ctx, trace)
}
