package engines

import (
	"context"

	"anneal/domain"
)

type traceKey struct{}

// WithTrace returns a context that carries the trace of a request to the engine, which sends the
// trace to its model server.
func WithTrace(ctx context.Context, trace domain.Trace) context.Context {
	if trace == (domain.Trace{}) {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, trace)
}

// TraceOf returns the trace that a context carries, or no trace.
func TraceOf(ctx context.Context) domain.Trace {
	trace, _ := ctx.Value(traceKey{}).(domain.Trace)
	return trace
}
