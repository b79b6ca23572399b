package api

import (
	"net/http"
	"strconv"

	"anneal/api/request"
	"anneal/domain"
	"anneal/tracing"
)

// startSpan starts the span of a request to an operation, and returns the request with it. Without a
// tracer, and for operations without a key, such as health checks, it starts none. The response names
// the span if the client sent no trace context.
func startSpan(op *request.Operation, w http.ResponseWriter, r *http.Request) (*http.Request, tracing.Span) {
	if op.Gate == request.Everyone || !tracing.Enabled(r.Context()) {
		return r, tracing.Span{}
	}
	ctx, span := tracing.StartRequest(r.Context(), request.TraceOf(r), tracing.Server, op.Method+" "+op.Path)
	if !span.Recording() {
		return r, span
	}
	if w.Header().Get(request.TraceParentHeader) == "" {
		w.Header().Set(request.TraceParentHeader, tracing.Of(ctx, domain.Trace{}).Parent)
	}
	return r.WithContext(ctx), span
}

// endSpan ends the span of a request with the status of its response.
func endSpan(span tracing.Span, w http.ResponseWriter, c *request.Call) {
	if !span.Recording() {
		return
	}
	span.Text("http.request.method", c.Operation.Method)
	span.Text("http.route", c.Operation.Path)
	span.Text("anneal.operation", c.Operation.ID)
	span.Text("anneal.request_id", c.ID)
	span.Text("anneal.account", c.Account)
	span.Text("anneal.principal", string(c.Principal.Key))
	if position, err := strconv.ParseInt(w.Header().Get(request.PositionHeader), 10, 64); err == nil {
		span.Int("anneal.position", position)
	}
	if r, ok := w.(*recorder); ok {
		span.Int("http.response.status_code", int64(r.status))
		if r.status >= http.StatusInternalServerError || r.status == 0 { // 0: the handler panics
			span.Fail(r.reason)
		}
	}
	span.End(nil)
}
