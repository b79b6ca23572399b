// Package tracing records spans of requests, and of the work that they cause, for OpenTelemetry. A
// context carries the tracer. Without a tracer in the context, and for a trace that is not sampled,
// nothing is recorded and nothing is allocated. Attributes of spans never contain API keys,
// secrets, prompts, completions or messages of errors.
package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"anneal/domain"
)

// Kinds of spans.
const (
	Internal = trace.SpanKindInternal
	Server   = trace.SpanKindServer
	Client   = trace.SpanKindClient
	Consumer = trace.SpanKindConsumer
)

type tracerKey struct{}

// NewContext returns a context in which Start and StartRequest record spans with a tracer; ctx if
// the tracer is nil.
func NewContext(ctx context.Context, tracer trace.Tracer) context.Context {
	if tracer == nil {
		return ctx
	}
	return context.WithValue(ctx, tracerKey{}, tracer)
}

// Enabled reports whether spans are recorded with the context.
func Enabled(ctx context.Context) bool { return ctx.Value(tracerKey{}) != nil }

// A Span is one operation of a trace. The zero Span records nothing.
type Span struct{ span trace.Span }

// Start starts a span as a child of the span in the context or, if there is none, of the sampled
// span that parent names. It returns the context with the span. It starts no span without a tracer
// or a parent.
func Start(ctx context.Context, parent domain.Trace, kind trace.SpanKind, name string) (context.Context, Span) {
	tracer, ok := ctx.Value(tracerKey{}).(trace.Tracer)
	if !ok {
		return ctx, Span{}
	}
	from := ctx
	if !trace.SpanFromContext(ctx).IsRecording() {
		from = withRemote(ctx, parent)
		if of := trace.SpanContextFromContext(from); !of.IsRemote() || !of.IsSampled() {
			return ctx, Span{} // a span in ctx has ended, such as that of a replica that has started
		}
	}
	return start(ctx, from, tracer, kind, name)
}

// StartRequest starts the span of a request to this server. If the client sent no trace context,
// the span is the root of a new trace, which the tracer may decide not to sample.
func StartRequest(ctx context.Context, parent domain.Trace, kind trace.SpanKind, name string) (context.Context, Span) {
	tracer, ok := ctx.Value(tracerKey{}).(trace.Tracer)
	if !ok {
		return ctx, Span{}
	}
	return start(ctx, withRemote(ctx, parent), tracer, kind, name)
}

// start starts a span. If the tracer does not sample it, the result is ctx, so that the trace
// context of the client is passed on unchanged.
func start(ctx, from context.Context, tracer trace.Tracer, kind trace.SpanKind, name string) (context.Context, Span) {
	started, span := tracer.Start(from, name, trace.WithSpanKind(kind))
	if !span.IsRecording() {
		return ctx, Span{}
	}
	return started, Span{span}
}

const (
	headerParent = "traceparent"
	headerState  = "tracestate"
)

// withRemote returns a context with the remote span that parent names; ctx if parent is empty.
func withRemote(ctx context.Context, parent domain.Trace) context.Context {
	if parent.Parent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx,
		propagation.MapCarrier{headerParent: parent.Parent, headerState: parent.State})
}

// Of returns the trace context of the span in the context; fallback if there is none.
func Of(ctx context.Context, fallback domain.Trace) domain.Trace {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return fallback
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return domain.Trace{Parent: carrier[headerParent], State: carrier[headerState]}
}

// Recording reports whether the span is recorded.
func (s Span) Recording() bool { return s.span != nil }

// Text sets an attribute of the span.
func (s Span) Text(key, value string) {
	if s.span != nil && value != "" {
		s.span.SetAttributes(attribute.String(key, value))
	}
}

// Int sets an attribute of the span.
func (s Span) Int(key string, value int64) {
	if s.span != nil {
		s.span.SetAttributes(attribute.Int64(key, value))
	}
}

// Fail marks the span as failed. reason is a code, not a message, because messages may contain data
// of users.
func (s Span) Fail(reason string) {
	if s.span != nil {
		s.span.SetStatus(codes.Error, reason)
	}
}

// End ends the span. If err is not nil, the span has failed with the code of err.
func (s Span) End(err error) {
	if s.span == nil {
		return
	}
	if err != nil {
		s.Fail(domain.CodeOf(err).String())
	}
	s.span.End()
}
