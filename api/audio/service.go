// Package audio serves transcriptions and translations of recordings: it reads forms, downloads
// recordings from URLs, sends requests to speech models, and writes transcripts, subtitles and
// streams.
package audio

import (
	"github.com/prometheus/client_golang/prometheus"

	"anneal/api/download"
	"anneal/api/openapi"
	"anneal/api/request"
	"anneal/api/routing"
	"anneal/api/upload"
)

// Documentation describes the wire types of this package for the API reference.
var Documentation = openapi.Documentation{Rules: rules, Fields: fieldTexts, Types: typeTexts}

// Options configures a Service.
type Options struct {
	Router  *routing.Router
	Uploads *upload.Store
	Strict  bool          // reject unknown form fields instead of ignoring them with a warning
	Private bool          // allow downloads of recordings from private IP addresses
	Dial    download.Dial // connects to the servers of recordings; nil means a dialer that obeys Private
}

// A Service handles requests for transcriptions and translations.
type Service struct {
	Options
	fetcher      *download.Fetcher
	audioSeconds prometheus.Counter
}

// NewService returns a Service and registers its metrics. limits.Fetch bounds the time to download
// a recording.
func NewService(o Options, limits request.Limits, metrics prometheus.Registerer) *Service {
	s := &Service{Options: o, fetcher: download.New(limits.Fetch, o.Private, o.Dial, "upload the file"),
		audioSeconds: prometheus.NewCounter(prometheus.CounterOpts{Name: "anneal_transcribed_seconds_total",
			Help: "Length of each transcribed recording, in seconds."})}
	metrics.MustRegister(s.audioSeconds)
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
