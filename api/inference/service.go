// Package inference serves completions, chat completions, responses, embeddings and lists of
// models: it reads requests, generates each choice on a replica, and writes responses and streams
// in the formats of OpenAI's API.
package inference

import (
	"github.com/prometheus/client_golang/prometheus"

	"anneal/api/download"
	"anneal/api/openapi"
	"anneal/api/request"
	"anneal/api/routing"
	"anneal/api/upload"
)

// Documentation describes the wire types of this package for the API reference.
var Documentation = openapi.Documentation{Rules: openapi.Joined(rules, responseRules),
	Fields: openapi.Joined(fieldTexts, responseTexts), Types: openapi.Joined(typeTexts, responseTypeTexts)}

// Options configures a Service.
type Options struct {
	Router  *routing.Router
	Uploads *upload.Store
	Strict  bool          // reject unknown fields instead of ignoring them with a warning
	Private bool          // allow downloads of images from private IP addresses
	Dial    download.Dial // connects to the servers of images; nil means a dialer that obeys Private
}

// A Service handles the requests of this package's operations.
type Service struct {
	Options
	images           *download.Fetcher
	tokens           *prometheus.CounterVec
	timeToFirstToken prometheus.Histogram
}

// NewService returns a Service and registers its metrics. limits.Fetch bounds the time to download
// an image.
func NewService(o Options, limits request.Limits, metrics prometheus.Registerer) *Service {
	s := &Service{Options: o,
		images: download.New(limits.Fetch, o.Private, o.Dial, "send the image as a data: URL"),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "anneal_completion_tokens_total",
			Help: "Tokens of completion requests, by kind: prompt or completion."}, []string{"kind"}),
		timeToFirstToken: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "anneal_completion_first_token_seconds",
			Help: "Time from the start of a completion request to its first " +
				"token.", Buckets: prometheus.ExponentialBuckets(0.005, 3, 9)}),
	}
	metrics.MustRegister(s.tokens, s.timeToFirstToken)
	return s
}

// A call is a request in progress, and the service that handles it.
type call struct {
	*request.Call
	*Service
}

func (s *Service) handle(h func(*call) (any, error)) request.Handler {
	return func(c *request.Call) (any, error) { return h(&call{c, s}) }
}
