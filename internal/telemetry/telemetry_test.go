package telemetry

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"anneal/domain"
	"anneal/tracing"
)

func flagsOf(t *testing.T, args ...string) *Flags {
	t.Helper()
	var flags Flags
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.Add(f)
	require.NoError(t, f.Parse(args))
	return &flags
}

// TestFlags checks which values are valid, and which URL follows from them.
func TestFlags(t *testing.T) {
	for endpoint, want := range map[string]string{"": "", "http://c:4318": "http://c:4318/v1/traces",
		"https://c/otlp/": "https://c/otlp/v1/traces", "http://c:4318/v1/traces": "http://c:4318/v1/traces"} {
		flags := flagsOf(t, "--otlp-endpoint", endpoint)
		require.NoError(t, flags.Check(), endpoint)
		got, err := flags.url()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, args := range [][]string{{"--otlp-endpoint=c:4318"}, {"--otlp-endpoint=grpc://c:4317"},
		{"--otlp-endpoint=http://"}, {"--otlp-endpoint=http://user:secret@c"}, {"--otlp-endpoint=http://user:secret@c:port"},
		{"--otlp-endpoint=http://c?key=secret"},
		{"--otlp-sample-ratio=1.5"}, {"--otlp-sample-ratio=-1"}, {"--otlp-sample-ratio=NaN"}} {
		err := flagsOf(t, args...).Check()
		require.Error(t, err, args)
		require.NotContains(t, err.Error(), "secret")
	}
	tracer, stop, err := flagsOf(t).Open(t.Context(), "test", "1", slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Nil(t, tracer, "off by default")
	stop()
}

// TestStandardVariables checks that the standard variables of OpenTelemetry are used: headers with
// credentials, and attributes of the process.
func TestStandardVariables(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20of-the-collector")
	t.Setenv("OTEL_SERVICE_NAME", "named-by-the-operator")
	received := make(chan string, 1)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		_, _ = body.ReadFrom(r.Body)
		received <- r.Header.Get("Authorization") + " " + body.String()
	}))
	defer s.Close()
	tracer, stop, err := flagsOf(t, "--otlp-endpoint", s.URL).Open(t.Context(), "test", "1",
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	_, span := tracing.StartRequest(tracing.NewContext(t.Context(), tracer), domain.Trace{}, tracing.Server, "request")
	span.End(nil)
	stop()
	got := <-received
	require.Contains(t, got, "Bearer of-the-collector ")
	require.Contains(t, got, "named-by-the-operator")
}

type failing struct{ sdktrace.SpanExporter }

func (failing) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	return errors.New("connection refused")
}

// TestDeadCollectorIsLoggedRarely checks that a collector that does not respond is logged at most
// once in warnEvery, with the number of lost spans.
func TestDeadCollectorIsLoggedRarely(t *testing.T) {
	var log bytes.Buffer
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	e := &loggingExporter{SpanExporter: failing{}, logger: slog.New(slog.NewTextHandler(&log, nil)),
		now: func() time.Time { return now }}
	for range 100 {
		require.NoError(t, e.ExportSpans(t.Context(), make([]sdktrace.ReadOnlySpan, 2)))
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"))
	now = now.Add(warnEvery)
	require.NoError(t, e.ExportSpans(t.Context(), make([]sdktrace.ReadOnlySpan, 2)))
	require.Equal(t, 2, strings.Count(log.String(), "\n"))
	require.Contains(t, log.String(), "spans=200")
}

// TestSpansNeverBlock checks that spans end at once while the collector hangs, and that the queue
// of spans is bounded.
func TestSpansNeverBlock(t *testing.T) {
	hang := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer s.Close()
	defer close(hang)
	tracer, stop, err := flagsOf(t, "--otlp-endpoint", s.URL).Open(t.Context(), "test", "1",
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx := tracing.NewContext(t.Context(), tracer)
	began := time.Now()
	const spans = 10 * sdktrace.DefaultMaxQueueSize
	for range spans {
		_, span := tracing.StartRequest(ctx, domain.Trace{}, tracing.Server, "request")
		span.End(nil)
	}
	require.Less(t, time.Since(began), 30*time.Second, "a span that waits for the collector takes longer")
	stop()
	require.Less(t, time.Since(began), 40*time.Second, "the end of the process does not wait for the collector")
}
