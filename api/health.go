package api

import (
	"context"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"anneal/api/request"
	"anneal/domain"
)

// healthTime bounds how long the log may take to answer a question of health.
const healthTime = 2 * time.Second

func systemOperations(s *Server) []request.Operation {
	return []request.Operation{
		{ID: "getOpenAPI", Method: "GET", Path: "/openapi.json", Tag: "system", Summary: "Read this description", Gate: request.Everyone,
			Media: "application/json", Handle: s.handle(openAPI)},
		{ID: "getHealth", Method: "GET", Path: "/healthz", Tag: "system", Summary: "Tell whether the process lives", Gate: request.Everyone,
			Response: reflect.TypeFor[health](), Handle: s.handle(healthy)},
		{ID: "getReadiness", Method: "GET", Path: "/readyz", Tag: "system", Summary: "Tell whether requests are answered from all of the log", Gate: request.Everyone,
			Response: reflect.TypeFor[health](), Handle: s.handle(ready)},
		{ID: "getMetrics", Method: "GET", Path: "/metrics", Tag: "system", Summary: "Read metrics in the text format of Prometheus", Gate: request.Everyone,
			Media: "text/plain", Handle: s.handle(func(c *call) (any, error) {
				promhttp.HandlerFor(c.server.Metrics, promhttp.HandlerOpts{}).ServeHTTP(c.Writer, c.Request)
				return nil, nil
			})},
	}
}

// health is how the server is; position is the last of the log.
type health struct {
	Status   string `json:"status"`
	Position string `json:"position,omitempty"`
}

// healthy answers as long as the process does.
func healthy(*call) (any, error) { return health{Status: "ok"}, nil }

// ready answers when the log can be read and the world holds all of it.
func ready(c *call) (any, error) {
	ctx, cancel := context.WithTimeout(c.Ctx, healthTime)
	defer cancel()
	last, err := c.Log.Last(ctx)
	if err == nil {
		err = c.World.WaitFor(ctx, last.Position)
	}
	if err != nil {
		c.Logger.Warn("not ready", "error", err)
		return nil, domain.Errorf(domain.Unavailable, "not ready: the log cannot be read, or is not yet read to its end; the world is at position %d", c.World.Position())
	}
	return health{"ok", strconv.FormatUint(last.Position, 10)}, nil
}

// meters are what /metrics shows of this server.
type meters struct {
	requests  *prometheus.CounterVec
	latency   *prometheus.HistogramVec
	tokens    *prometheus.CounterVec
	firstText prometheus.Histogram
	audio     prometheus.Counter
}

func newMeters(o Options) *meters {
	m := &meters{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "anneal_http_requests_total",
			Help: "Requests answered, by route, method and status."}, []string{"route", "method", "status"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "anneal_http_request_seconds",
			Help: "Time from the request's header to the end of its answer.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 9)}, []string{"route"}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "anneal_completion_tokens_total",
			Help: "Tokens of completions, by kind: prompt, completion."}, []string{"kind"}),
		firstText: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "anneal_completion_first_token_seconds",
			Help: "Time from a completion request to its first token.", Buckets: prometheus.ExponentialBuckets(0.005, 3, 9)}),
	}
	m.audio = prometheus.NewCounter(prometheus.CounterOpts{Name: "anneal_transcribed_seconds_total", Help: "Seconds of recordings that were listened to."})
	position := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "anneal_world_position",
		Help: "Position of the last event that the world holds."}, func() float64 { return float64(o.World.Position()) })
	lag := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "anneal_world_lag_events",
		Help: "Events in the log that the world does not hold yet; -1 when the log does not answer."}, func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), healthTime)
		defer cancel()
		last, err := o.Log.Last(ctx)
		if err != nil {
			return -1
		}
		return max(0, float64(last.Position)-float64(o.World.Position()))
	})
	o.Metrics.MustRegister(m.requests, m.latency, m.tokens, m.firstText, m.audio, position, lag)
	return m
}

func (m *meters) request(route, method string, status int, took time.Duration) {
	if route == "" {
		route = "none"
	}
	if _, known := knownMethods[method]; !known {
		method = "other" // a client chooses this word; it must not make new series for ever
	}
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
	m.latency.WithLabelValues(route).Observe(took.Seconds())
}

var knownMethods = map[string]bool{http.MethodGet: true, http.MethodPost: true, http.MethodPatch: true, http.MethodPut: true,
	http.MethodDelete: true, http.MethodHead: true, http.MethodOptions: true}
