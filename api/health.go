package api

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"anneal/api/openapi"
	"anneal/api/request"
	"anneal/api/wire"
	"anneal/disk"
	"anneal/domain"
)

// healthTime bounds how long a health check waits for the log.
const healthTime = 2 * time.Second

func (s *Server) systemOperations() []request.Operation {
	metricsGate := request.Everyone
	if s.PrivateMetrics {
		metricsGate = request.ByOperator
	}
	return []request.Operation{
		{ID: "getHealth", Method: "GET", Path: "/healthz", Tag: "system", Summary: "Report whether the process is alive",
			Gate:     request.Everyone,
			Response: reflect.TypeFor[health](), Handle: healthy},
		{ID: "getReadiness", Method: "GET", Path: "/readyz", Tag: "system",
			Summary: "Report whether the server can serve reads and inference, for load balancers",
			Gate:    request.Everyone, Response: reflect.TypeFor[health](), Handle: s.ready},
		{ID: "getWriteReadiness", Method: "GET", Path: "/readyz/write", Tag: "system",
			Summary: "Report whether the server can also record changes", Gate: request.Everyone,
			Response: reflect.TypeFor[health](), Handle: s.readyToWrite},
		{ID: "getMetrics", Method: "GET", Path: "/metrics", Tag: "system",
			Summary: "Read metrics in the text format of Prometheus", Gate: metricsGate,
			Media: "text/plain", Handle: gathered(s.Metrics)},
		{ID: "getDetailedMetrics", Method: "GET", Path: "/metrics/detailed", Tag: "system",
			Summary: "Read the metrics that are labeled with the names of accounts, nodes and " +
				"deployments", Gate: request.ByOperator,
			Media: "text/plain", Handle: gathered(s.Metrics, s.Named)},
	}
}

// gathered returns a handler that writes the metrics of all sources except nil ones.
func gathered(sources ...prometheus.Gatherer) request.Handler {
	present := slices.DeleteFunc(sources, func(g prometheus.Gatherer) bool { return g == nil })
	options := promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}
	handler := promhttp.HandlerFor(prometheus.Gatherers(present), options)
	return func(c *request.Call) (any, error) {
		if err := c.Params().Violations.Err(); err != nil {
			return nil, err
		}
		handler.ServeHTTP(c.Writer, c.Request)
		return nil, nil
	}
}

// documentation describes the wire types of this package.
var documentation = openapi.Documentation{
	Rules: map[string]wire.Rule{"Health.status": wire.OneOf("ok"), "Caller.role": wire.OneOf(domain.Roles...),
		"CallerAccount.role": wire.OneOf(domain.Roles...)},
	Types: map[string]string{"Health": "The state of the server.",
		"ProtectedResource": "How to log in to this server.",
		"Caller":            "Who sends a request.",
		"CallerAccount":     "An account that the caller may use."},
	Fields: identityTexts,
}

// health is the body of the response to a health check. Position is the position of the last event
// in the world.
type health struct {
	Status   string `json:"status"`
	Position string `json:"position,omitempty"`
}

// healthy responds to the liveness check with 200 as long as the process runs.
func healthy(*request.Call) (any, error) { return health{Status: "ok"}, nil }

// ready responds with 200 when the server can serve reads and inference: it is connected to NATS,
// and its world follows the log. It does not query the log: during an election or without a quorum
// the log cannot respond, but reads and inference continue.
func (s *Server) ready(c *request.Call) (any, error) {
	if s.leaving.Load() {
		return nil, notReady("the server is shutting down: send requests to another server")
	}
	if s.Link != nil {
		if err := s.Link(); err != nil {
			return nil, notReady("%v", err)
		}
	}
	if since := c.World.Behind(); !since.IsZero() && c.Now().Sub(since) > request.StaleAfter {
		return nil, notReady("the server has been behind the log for more than %s, at position %d: check its connection to "+
			"NATS", request.StaleAfter, c.World.Position())
	}
	return health{"ok", strconv.FormatUint(c.World.Position(), 10)}, nil
}

// readyToWrite responds with 200 when ready does, and the server can also record changes: the log
// responds, the world is at its last position, and the disk has space for events.
func (s *Server) readyToWrite(c *request.Call) (any, error) {
	if _, err := s.ready(c); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(c.Ctx, healthTime)
	defer cancel()
	last, err := c.Log.Last(ctx)
	if err == nil {
		err = c.World.WaitFor(ctx, last.Position)
	}
	if err != nil {
		c.Logger.Warn("the server is not ready to write", "error", err)
		return nil, notReady("the log cannot be read, or the world has not reached the last position of the log; the world "+
			"is at position %d: check the connection to NATS and its quorum", c.World.Position())
	}
	if err := c.Space.Check(disk.Requests, 0); err != nil {
		return nil, notReady("%v", err)
	}
	return health{"ok", strconv.FormatUint(last.Position, 10)}, nil
}

func notReady(format string, args ...any) error {
	return &domain.Error{Code: domain.Unavailable, Reason: "SERVER_NOT_READY",
		Message: "not ready: " + fmt.Sprintf(format, args...)}
}

// meters are the metrics of this server on /metrics.
type meters struct {
	requests *prometheus.CounterVec
	latency  *prometheus.HistogramVec
}

func newMeters(o Options) *meters {
	m := &meters{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "anneal_http_requests_total",
			Help: "HTTP requests with a complete response, by route, method and " +
				"status."}, []string{"route", "method", "status"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "anneal_http_request_seconds",
			Help:    "Time from the request's header to the end of its response.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 9)}, []string{"route"}),
	}
	position := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "anneal_world_position",
		Help: "Position of the last event that has been applied to the world."},
		func() float64 { return float64(o.World.Position()) })
	lag := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "anneal_world_lag_events",
		Help: "Number of events in the log that have not been applied to the world; -1 when the log cannot be " +
			"read."}, func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), healthTime)
		defer cancel()
		last, err := o.Log.Last(ctx)
		if err != nil {
			return -1
		}
		return max(0, float64(last.Position)-float64(o.World.Position()))
	})
	o.Metrics.MustRegister(m.requests, m.latency, position, lag)
	return m
}

func (m *meters) request(route, method string, status int, took time.Duration) {
	if route == "" {
		route = "none"
	}
	if _, known := knownMethods[method]; !known {
		method = "other" // clients choose the method, and each unknown one would create a time series
	}
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
	m.latency.WithLabelValues(route).Observe(took.Seconds())
}

var knownMethods = map[string]bool{http.MethodGet: true, http.MethodPost: true, http.MethodPatch: true,
	http.MethodPut:    true,
	http.MethodDelete: true, http.MethodHead: true, http.MethodOptions: true}
