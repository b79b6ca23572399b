// Package telemetry sends the spans of package tracing to an OpenTelemetry collector by OTLP over
// HTTP.
package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"anneal/internal/usage"
)

// Flags configure the traces of a process. The standard environment variables of OpenTelemetry
// configure the rest: OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE,
// OTEL_BSP_MAX_QUEUE_SIZE, OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME and others.
type Flags struct {
	endpoint string
	ratio    float64
}

// Add adds the flags to f.
func (t *Flags) Add(f *pflag.FlagSet) {
	f.StringVar(&t.endpoint, "otlp-endpoint", "",
		"`URL` of an OpenTelemetry collector to which traces are sent by OTLP over HTTP, such as http://127.0.0.1:4318; "+
			"$OTEL_EXPORTER_OTLP_HEADERS has its credentials (default: no traces)")
	f.Float64Var(&t.ratio, "otlp-sample-ratio", 1, "fraction of requests without a trace context that are traced, "+
		"from 0 to 1; the sampled flag of a request's trace context decides for that request")
}

// Check returns an error if a flag is invalid.
func (t *Flags) Check() error {
	if _, err := t.url(); err != nil {
		return usage.Errorf("--otlp-endpoint %q %v", t.redacted(), err)
	}
	if !(t.ratio >= 0 && t.ratio <= 1) { // also rejects NaN
		return usage.Errorf("--otlp-sample-ratio %v must be from 0 to 1", t.ratio)
	}
	return nil
}

// redacted returns the value of --otlp-endpoint for a message, without credentials.
func (t *Flags) redacted() string {
	scheme, rest, ok := strings.Cut(t.endpoint, "://")
	if !ok {
		scheme, rest = "", t.endpoint
	}
	rest, query, _ := strings.Cut(rest, "?")
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		rest = "xxxxx" + rest[at:]
	}
	if query != "" {
		rest += "?xxxxx"
	}
	if ok {
		return scheme + "://" + rest
	}
	return rest
}

// tracesPath is the path of traces below the base URL of a collector.
const tracesPath = "/v1/traces"

// url returns the URL to which traces are sent; "" for none.
func (t *Flags) url() (string, error) {
	if t.endpoint == "" {
		return "", nil
	}
	u, err := url.Parse(t.endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("must be the base URL of a collector, such as http://127.0.0.1:4318")
	}
	if u.User != nil {
		return "", fmt.Errorf("must not contain credentials: set $OTEL_EXPORTER_OTLP_HEADERS to the headers of the collector")
	}
	if !strings.HasSuffix(u.Path, tracesPath) {
		u = u.JoinPath(tracesPath)
	}
	return u.String(), nil
}

// shutdownTimeout is the maximum time for which a process that ends waits until its last spans are
// sent.
const shutdownTimeout = 2 * time.Second

// Open returns the tracer of this process; nil without --otlp-endpoint. service is the name of the
// process in traces. stop sends the remaining spans; it is never nil.
func (t *Flags) Open(ctx context.Context, service, version string, logger *slog.Logger) (
	tracer trace.Tracer, stop func(), err error) {
	endpoint, err := t.url()
	if endpoint == "" || err != nil {
		return nil, func() {}, err
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(endpoint))
	if err != nil {
		return nil, func() {}, fmt.Errorf("open the exporter of traces to %s: %w", endpoint, err)
	}
	about, err := resource.New(ctx, resource.WithHost(), resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", version)),
		resource.WithFromEnv()) // the last one wins
	if err != nil {
		logger.Warn("cannot read all attributes of the process for traces", "error", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithResource(about),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(t.ratio))),
		sdktrace.WithBatcher(&loggingExporter{SpanExporter: exporter, endpoint: endpoint, logger: logger, now: time.Now}))
	return provider.Tracer("anneal"), func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		_ = provider.Shutdown(ending) // loggingExporter has logged the error
	}, nil
}

// warnEvery is the minimum time between two warnings about a collector that does not accept spans.
const warnEvery = 10 * time.Minute

// loggingExporter is an exporter that logs its errors, at most one in warnEvery, and does not
// return them.
type loggingExporter struct {
	sdktrace.SpanExporter
	endpoint string
	logger   *slog.Logger
	now      func() time.Time

	mu     sync.Mutex
	warned time.Time
	lost   int // number of spans that were not sent since the last warning
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *loggingExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost += len(spans)
	if now := e.now(); e.warned.IsZero() || now.Sub(e.warned) >= warnEvery {
		e.logger.Warn("the collector of traces does not accept spans, so they are lost: requests are not affected",
			"endpoint", e.endpoint, "spans", e.lost, "error", err)
		e.warned, e.lost = now, 0
	}
	return nil
}
