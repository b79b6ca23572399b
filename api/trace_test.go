package api

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog"
)

var sampleTrace = domain.Trace{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", State: "a=1,b=2"}

// TestTraces checks that the trace context of a request is in the events that the request and the
// reactions to it record, and in the response.
func TestTraces(t *testing.T) {
	s := newHarness(t, request.Limits{})
	created := map[string]http.Header{
		"traced":  {"Traceparent": {sampleTrace.Parent}, "Tracestate": {"a=1", "b=2"}},
		"invalid": {"Traceparent": {strings.ToUpper(sampleTrace.Parent)}, "Tracestate": {"a=1"}},
		"twice":   {"Traceparent": {sampleTrace.Parent, sampleTrace.Parent}},
		"none":    {},
	}
	for id, headers := range created {
		r := s.request("POST", "/v1/accounts/acme/datasets", "user", strings.NewReader(`{"datasetId": "`+id+
			`", "dataset": {"format": "CHAT"}}`))
		r.Header.Set("Content-Type", "application/json")
		for name, values := range headers {
			r.Header[name] = values
		}
		a := s.send(r)
		require.Equal(t, 200, a.status, "%s", a.body)
		want := domain.Trace{}
		if id == "traced" {
			want = sampleTrace
		}
		require.Equal(t, want.Parent, a.header.Get("traceparent"), id)
		event := s.eventOf(domain.Name("accounts/acme/datasets/" + id))
		require.Equal(t, want, event.Trace, id)
		reaction := eventlog.Reaction(event, "task/t", epoch)
		require.Equal(t, eventlog.Request{Time: epoch, Actor: "task/t", Cause: event.ID,
			Correlation: a.header.Get("X-Request-Id"), Trace: want}, reaction)
	}
	const filter = `?filter=traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-*"`
	list := s.call("GET", "/v1/accounts/acme/events"+strings.ReplaceAll(filter, `"`, "%22"), "user", "").json(t)
	require.EqualValues(t, 1, list["totalSize"])
	shown := list["events"].([]any)[0].(map[string]any)
	require.Equal(t, []any{sampleTrace.Parent, sampleTrace.State, "accounts/acme/datasets/traced",
		"anneal:/schemas/dataset.created.v1.json"},
		[]any{shown["traceparent"], shown["tracestate"], shown["subject"], shown["dataschema"]})
}

// eventOf returns the first event of a resource.
func (s *harness) eventOf(name domain.Name) (first eventlog.Event) {
	s.Helper()
	for e, err := range s.log.Read(s.Context(), name.Subject(), 0) {
		require.NoError(s, err)
		return e
	}
	require.FailNow(s, "no event of "+string(name))
	return first
}

// TestTracesReachReplicas checks that the trace context of a request to a model is sent to the replica,
// and is in the usage record, also when the request is one of a batch.
func TestTracesReachReplicas(t *testing.T) {
	s := newHarness(t, request.Limits{})
	meter := &usageRecorder{}
	s.server.inference.Router.Meter = meter
	s.deploy("d1", 1)
	var sent domain.Trace
	s.replicas.respond = func(ctx context.Context, _ domain.Replica, _ engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		sent = engines.TraceOf(ctx)
		return engines.Usage{}, emit(engines.Chunk{Text: "a", Tokens: []int{1}, Finish: engines.FinishStop})
	}
	for _, trace := range []domain.Trace{sampleTrace, {}} {
		const body = `{"model": "` + hearer + `", "prompt": "a"}`
		r := s.request("POST", "/v1/completions", "inference", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		if trace.Parent != "" {
			r.Header.Set("traceparent", trace.Parent)
			r.Header.Set("tracestate", trace.State)
		}
		a := s.send(r)
		require.Equal(t, 200, a.status, "%s", a.body)
		require.Equal(t, trace, sent)
		require.Equal(t, trace, meter.taken(t)[0].Trace)

		sent = domain.Trace{Parent: "none"}
		b := s.server.ServeInBackground(t.Context(), BackgroundRequest{Key: keyNameOf(t, s.keys["inference"]), ID: "r",
			Trace: trace, Path: "/v1/completions", Body: []byte(body)})
		require.Equal(t, 200, b.Status, "%s", b.Body)
		require.Equal(t, trace, sent)
		require.Equal(t, trace, meter.taken(t)[0].Trace)
	}
}
