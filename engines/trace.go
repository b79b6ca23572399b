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

// TraceOf returns the trace in a context: that of its span if one is recorded, otherwise that of
// WithTrace; the zero value if there is none.
func TraceOf(ctx context.Context) domain.Trace {
	trace, _ := ctx.Value(traceKey{}).(domain.Trace)
	return tracing.Of(ctx, trace)
}
