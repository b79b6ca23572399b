package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"anneal/domain"
	"anneal/tracing"
)

const (
	sampled   = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	unsampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
)

// newTracer returns a context with a tracer that samples the given fraction of new traces, and the
// recorder of its spans.
func newTracer(t *testing.T, ratio float64) (context.Context, *tracetest.SpanRecorder) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(ratio))))
	return tracing.NewContext(t.Context(), provider.Tracer("test")), recorder
}

// TestSpansContinueTraces checks the parents of spans: the span in the context, a remote one, or
// none.
func TestSpansContinueTraces(t *testing.T) {
	ctx, recorder := newTracer(t, 1)
	root, span := tracing.StartRequest(ctx, domain.Trace{}, tracing.Server, "root")
	require.True(t, span.Recording())
	passed := tracing.Of(root, domain.Trace{})
	require.Len(t, passed.Parent, len(sampled))

	_, child := tracing.Start(root, domain.Trace{Parent: sampled}, tracing.Internal, "child")
	child.End(errors.New("secret of a user"))
	_, remote := tracing.Start(ctx, passed, tracing.Consumer, "remote")
	remote.Text("a", "b")
	remote.Int("n", 1)
	remote.End(nil)
	span.End(nil)
	for _, none := range []domain.Trace{{}, {Parent: unsampled}, {Parent: "not a trace"}} {
		same, nothing := tracing.Start(ctx, none, tracing.Internal, "none")
		require.False(t, nothing.Recording())
		require.Equal(t, ctx, same)
	}
	_, late := tracing.Start(root, domain.Trace{}, tracing.Internal, "after the end of its parent")
	require.False(t, late.Recording())

	ended := recorder.Ended()
	require.Len(t, ended, 3)
	for _, one := range ended[:2] {
		require.Equal(t, ended[2].SpanContext().SpanID(), one.Parent().SpanID(), one.Name())
		require.Equal(t, ended[2].SpanContext().TraceID(), one.SpanContext().TraceID(), one.Name())
	}
	require.Equal(t, "UNKNOWN", ended[0].Status().Description, "the message of an error is not recorded")
}

// TestSampling checks that a request decides whether it is sampled, and that otherwise the ratio
// does.
func TestSampling(t *testing.T) {
	ctx, recorder := newTracer(t, 0)
	same, span := tracing.StartRequest(ctx, domain.Trace{}, tracing.Server, "new")
	require.False(t, span.Recording())
	require.Equal(t, ctx, same)
	client := domain.Trace{Parent: unsampled, State: "a=1"}
	same, span = tracing.StartRequest(ctx, client, tracing.Server, "not sampled by the client")
	require.False(t, span.Recording())
	require.Equal(t, client, tracing.Of(same, client), "it is passed on unchanged")
	_, span = tracing.StartRequest(ctx, domain.Trace{Parent: sampled, State: "a=1"}, tracing.Server, "sampled")
	span.End(nil)
	require.Len(t, recorder.Ended(), 1)
	require.Equal(t, "a=1", recorder.Ended()[0].SpanContext().TraceState().String())
}

// TestNothingIsAllocatedWithoutTracer checks that spans allocate no memory without a tracer.
func TestNothingIsAllocatedWithoutTracer(t *testing.T) {
	ctx, parent, failed := context.WithValue(t.Context(), t, t), domain.Trace{Parent: sampled}, errors.New("failed")
	var recent *tracing.Recent
	require.Zero(t, testing.AllocsPerRun(100, func() {
		started, span := tracing.Start(ctx, parent, tracing.Internal, "name")
		span.Text("key", "value")
		span.Int("key", 1)
		_ = tracing.Of(started, parent)
		recent.Add("accounts/a/jobs/b", parent, time.Time{}, time.Time{})
		_ = recent.Of("accounts/a/jobs/b", time.Time{})
		span.End(failed)
	}))
}

func BenchmarkStartWithoutTracer(b *testing.B) {
	ctx, parent := context.WithValue(b.Context(), b, b), domain.Trace{Parent: sampled}
	b.ReportAllocs()
	for b.Loop() {
		_, span := tracing.Start(ctx, parent, tracing.Internal, "name")
		span.End(nil)
	}
}

// TestRecentIsBounded checks that a trace has a bounded number of events of a resource, within a
// bounded time, and that the number of resources is bounded.
func TestRecentIsBounded(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const name = domain.Name("accounts/a/deployments/d")
	trace := domain.Trace{Parent: sampled}
	r := tracing.NewRecent()
	r.Add("accounts/system/nodes/n", trace, noon, noon)
	require.Zero(t, r.Of("accounts/system/nodes/n", noon), "nodes belong to no trace")
	r.Add(name, domain.Trace{}, noon, noon)
	require.Zero(t, r.Of(name, noon))
	r.Add(name, trace, noon.Add(-tracing.MaxAge-1), noon)
	require.Zero(t, r.Of(name, noon), "the event is old, as those that are read at a start")

	r.Add(name, trace, noon, noon)
	require.Equal(t, trace, r.Of(name, noon.Add(tracing.MaxAge)))
	require.Zero(t, r.Of(name, noon.Add(tracing.MaxAge+1)))
	for range tracing.MaxEvents - 2 {
		r.Add(name, trace, noon, noon)
	}
	require.Equal(t, trace, r.Of(name, noon))
	r.Add(name, trace, noon, noon)
	require.Zero(t, r.Of(name, noon), "the trace has enough events of the resource")
	next := domain.Trace{Parent: "00-00000000000000000000000000000001-00f067aa0ba902b7-01"}
	r.Add(name, next, noon, noon)
	require.Equal(t, next, r.Of(name, noon), "another request")

	for range 4 * tracing.MaxEvents {
		r.Of(name, noon)
	}
	require.Zero(t, r.Of(name, noon), "changes that are refused do not extend a trace without limit")

	for i := range 30_000 {
		r.Add(domain.Name(fmt.Sprint("accounts/a/deployments/", i)), trace, noon, noon)
	}
	require.Zero(t, r.Of(name, noon), "the resources that changed least recently are forgotten")
	require.Equal(t, trace, r.Of("accounts/a/deployments/29999", noon))
}
