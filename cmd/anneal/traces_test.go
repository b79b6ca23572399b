package main_test

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"anneal/internal/testutil"
)

// A traceCollector is an OpenTelemetry collector that keeps the spans that it receives.
type traceCollector struct {
	*httptest.Server
	t     testing.TB
	mu    sync.Mutex
	spans map[string]*otlp.Span // by ID
	of    map[string]string     // service of each span
}

func newTraceCollector(t testing.TB) *traceCollector {
	c := &traceCollector{t: t, spans: map[string]*otlp.Span{}, of: map[string]string{}}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

// ServeHTTP implements http.Handler.
func (c *traceCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var request collector.ExportTraceServiceRequest
	if r.Method != http.MethodPost || r.URL.Path != "/v1/traces" ||
		proto.Unmarshal(testutil.ReadAll(c.t, r.Body), &request) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, from := range request.GetResourceSpans() {
		service := ""
		for _, attribute := range from.GetResource().GetAttributes() {
			if attribute.GetKey() == "service.name" {
				service = attribute.GetValue().GetStringValue()
			}
		}
		for _, scope := range from.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				c.spans[string(span.GetSpanId())], c.of[string(span.GetSpanId())] = span, service
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// paths returns the paths of all spans below the newest root span with a name, sorted: the names of a
// span and its ancestors up to the root, with the service of the span. A span whose parent is missing
// has no path.
func (c *traceCollector) paths(root string) (paths []string, traceID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, span := range c.spans {
		if span.GetName() == root && len(span.GetParentSpanId()) == 0 {
			traceID = hex.EncodeToString(span.GetTraceId())
		}
	}
	for id, span := range c.spans {
		if hex.EncodeToString(span.GetTraceId()) != traceID {
			continue
		}
		path := span.GetName()
		for parent := span; len(parent.GetParentSpanId()) > 0 && parent != nil; {
			if parent = c.spans[string(parent.GetParentSpanId())]; parent == nil {
				path = ""
			} else {
				path = parent.GetName() + " > " + path
			}
		}
		if path != "" {
			paths = append(paths, c.of[id]+": "+path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths), traceID
}

// await waits until the trace of a root span has all paths of spans, and returns the ID of the trace.
// In a path, ... stands for further schedule spans, of which there may be several.
func (c *traceCollector) await(root string, want ...string) (traceID string) {
	c.t.Helper()
	var got []string
	eventually(c.t, "the spans of "+root, func() bool {
		var all []string
		all, traceID = c.paths(root)
		got = nil
		for _, path := range all {
			for strings.Contains(path, "schedule > schedule") {
				path = strings.ReplaceAll(path, "schedule > schedule", "schedule")
			}
			got = append(got, path)
		}
		for _, path := range want {
			if !slices.Contains(got, path) {
				return false
			}
		}
		return true
	})
	return traceID
}

// TestTraces checks that the trace of a request has the spans of everything that the request causes,
// in the server and in an agent, with the right parents: decision, append, schedule, assignment,
// attempt or start of a replica, and engine. Spans contain no keys and no prompts.
func TestTraces(t *testing.T) {
	t.Parallel()
	c := newTraceCollector(t)
	f := newFleet(t, "--otlp-endpoint", c.URL)
	metrics := freePort(t)
	f.work("one", "--otlp-endpoint", c.URL+"/v1/traces", "--metrics", metrics)
	user := f.user()
	user.dataset("codes", 20)

	user.job("codes", "codes", 1)
	user.until("/supervisedFineTuningJobs/codes", "state", "JOB_STATE_COMPLETED")
	const job = "POST /v1/accounts/{account}/supervisedFineTuningJobs"
	trace := c.await(job, "anneal: "+job, "anneal: "+job+" > decide > append",
		"anneal: "+job+" > schedule > decide > append",
		"anneal: "+job+" > schedule > assign",
		"anneal-agent: "+job+" > schedule > assign > attempt > download",
		"anneal-agent: "+job+" > schedule > assign > attempt > train",
		"anneal: "+job+" > schedule > decide > append") // the end of the job
	completed := f.eventOf("supervisedFineTuningJobs/codes", ".completed.v1")
	require.Contains(t, completed["traceparent"], trace)

	user.must(http.MethodPost, "/deployments?deploymentId=codes",
		object{"baseModel": "accounts/default/models/codes", "minReplicaCount": 1})
	user.until("/deployments/codes", "state", "READY")
	const deploy = "POST /v1/accounts/{account}/deployments"
	c.await(deploy, "anneal: "+deploy, "anneal: "+deploy+" > decide > append",
		"anneal: "+deploy+" > schedule > decide > append", "anneal: "+deploy+" > schedule > assign",
		"anneal-agent: "+deploy+" > schedule > assign > start replica > download",
		"anneal-agent: "+deploy+" > schedule > assign > start replica > load model")

	const prompt = "Packing code for 15 pink chairs, customer Rosa"
	status, answer, err := user.complete("accounts/default/models/codes", prompt)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, "%v", answer)
	const complete = "POST /inference/v1/completions"
	c.await(complete, "anneal: "+complete, "anneal: "+complete+" > send to replica",
		"anneal-agent: "+complete+" > send to replica > serve request",
		"anneal-agent: "+complete+" > send to replica > serve request > engine")

	checkAgentMetrics(t, "http://"+metrics+"/metrics")
	c.mu.Lock()
	defer c.mu.Unlock()
	positions := 0
	for _, span := range c.spans {
		for _, attribute := range span.GetAttributes() {
			value := attribute.GetValue()
			for _, secret := range []string{prompt, f.context.APIKey, f.operator().APIKey} {
				require.NotContains(t, fmt.Sprint(value), secret, attribute.GetKey())
			}
			if span.GetName() == "append" && attribute.GetKey() == "anneal.position" && value.GetIntValue() > 0 {
				positions++
			}
		}
		require.NotContains(t, span.GetName(), "healthz")
	}
	require.Positive(t, positions, "the spans of appends have positions")
}

// eventOf returns the newest event of a resource of the account default whose type has a suffix.
func (s *plane) eventOf(resource, suffix string) (found object) {
	s.t.Helper()
	for _, event := range s.user().list("/events", "events") {
		if kind, _ := event["type"].(string); event["subject"] == "accounts/default/"+resource &&
			strings.HasSuffix(kind, suffix) {
			found = event
		}
	}
	require.NotEmpty(s.t, found, "no event %s of %s", suffix, resource)
	return found
}

// checkAgentMetrics checks the metrics of an agent that has trained a model and served a request, and
// that the reference has all of them.
func checkAgentMetrics(t *testing.T, url string) {
	text := string(httpGet(t, url))
	for _, line := range []string{`anneal_agent_info{node="one",version="dev"} 1`,
		`anneal_agent_attempts_ended_total{result="ok"} 1`, `anneal_agent_replicas{state="ready"} 1`,
		`anneal_agent_requests_total{account="default",deployment="codes",result="ok"} 1`,
		`anneal_agent_load_seconds_count{result="ok"} 1`, "anneal_nats_connected 1"} {
		require.Contains(t, text, line+"\n")
	}
	reference := string(testutil.ReadFile(t, "../../docs/reference/metrics.md"))
	for line := range strings.Lines(text) {
		if name, found := strings.CutPrefix(line, "# TYPE anneal_"); found {
			name, _, _ = strings.Cut(name, " ")
			require.Contains(t, reference, "`anneal_"+name+"`")
		}
	}
}

// TestTraceContextWithoutCollector checks what docs/events.md says of a server without a collector: the
// trace context of a request is in its response, its events, the reactions to them, and its usage record.
func TestTraceContextWithoutCollector(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	s.joined()
	user := s.user()
	const given, state = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "vendor=1"
	traced := func(method, path string, body any, header ...string) {
		t.Helper()
		res, err := user.send(method, path, body, append(header, "traceparent", given, "tracestate", state)...)
		require.NoError(t, err)
		testutil.ReadAll(t, res.Body)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusOK, res.StatusCode)
		require.Equal(t, given, res.Header.Get("traceparent"))
	}
	traced(http.MethodPost, "/datasets", object{"datasetId": "traced", "dataset": object{}})
	created := s.eventOf("datasets/traced", ".created.v1")
	require.Equal(t, []any{given, state}, []any{created["traceparent"], created["tracestate"]})

	user.deploy("d", object{"baseModel": baseModel})
	ready := s.eventOf("deployments/d", ".created.v1")
	require.NotContains(t, ready, "traceparent", "a request without the header")
	traced(http.MethodPost, "//inference/v1/completions", object{"prompt": "hello", "max_tokens": 4,
		"model": "accounts/default/deployments/d"})
	js, err := jetstream.New(s.reader(s.operator(), nil))
	require.NoError(t, err)
	eventually(t, "the usage record has the trace context", func() bool {
		stream, err := js.Stream(t.Context(), "USAGE")
		require.NoError(t, err)
		m, err := stream.GetMsg(t.Context(), stream.CachedInfo().State.LastSeq)
		return err == nil && m.Header.Get("ce-traceparent") == given && m.Header.Get("ce-tracestate") == state
	})
	out := s.run("events", "--filter", `traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-*"`).ok(t)
	require.Contains(t, out, "dataset.created.v1")
	require.Zero(t, s.end())
}
