// Package api serves the HTTP interface. It assembles the packages below it: request (shared by all
// operations), connection (limits of clients), rest (resources), inference and audio (models),
// events (the log) and openapi (the description). The package has no state besides connections: it
// reads the world and writes to the log.
package api

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/prometheus/client_golang/prometheus"

	"anneal/api/audio"
	"anneal/api/connection"
	"anneal/api/download"
	"anneal/api/events"
	"anneal/api/inference"
	"anneal/api/oidc"
	"anneal/api/openapi"
	"anneal/api/request"
	"anneal/api/rest"
	"anneal/api/routing"
	"anneal/api/tinker"
	"anneal/api/upload"
	"anneal/api/wire"
	"anneal/blobs"
	"anneal/blobs/operations"
	"anneal/disk"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog"
	"anneal/eventlog/audit"
	"anneal/eventlog/idempotency"
	"anneal/projections"
)

// DefaultCluster is the default name of an installation.
const DefaultCluster = "local"

// Options are the dependencies and settings of a server. For an optional field, the comment states
// the meaning of nil or zero.
type Options struct {
	Log    eventlog.Log
	World  *projections.World
	Blobs  *blobs.Store
	Sealer rest.Sealer
	// stores responses by idempotency key, to repeat them to retries; nil stores them in memory
	Idempotency request.IdempotencyStore
	LastUsed    request.LastUsedStore // stores when each API key was last used; nil stores the times in memory
	Meter       routing.Meter         // records usage; nil records no usage
	Replicas    routing.Replicas
	Audit       *audit.Recorder // records refused and failed requests and logins; nil records nothing
	Addresses   bool            // record the IP addresses of clients in events
	Proofs      events.Proofs   // proves that events are in the log (transparency log); nil disables proofs
	Space       *disk.Space     // checks the space on the server's disk; nil disables the check
	// Link returns an error while the server is not connected to NATS. nil means that the log needs
	// no connection.
	Link   func() error
	Scorer engines.Scorer // runs previews of evaluators; nil refuses previews
	// name of the installation, which deployments show in their field cluster; "" means DefaultCluster
	Cluster string
	// domain whose subdomains are the direct routes of deployments and trainer jobs; "" disables
	// direct routes
	Direct string
	// Journal stores the operations of training runs. nil means one on Blobs that no other control
	// plane and no coordinator shares.
	Journal *operations.Store
	// TrainingHold is how long a poll for the result of an operation waits; zero means
	// tinker.HoldTime.
	TrainingHold time.Duration
	// Login authenticates users of an identity provider; nil means that only API keys are accepted.
	Login   *oidc.Provider
	Address string // URL of this server, for clients
	Pepper  []byte // secret key of the HMACs with which API keys and page tokens are checked
	// origins of web pages whose scripts may read responses, or AnyOrigin; see CheckOrigin
	Origins []string
	Strict  bool // reject unknown inference parameters instead of ignoring them with a warning
	// ReaderURL is the URL of the NATS server from which readers read the events of their account;
	// "" if there is no such server.
	ReaderURL string
	PublicLog bool // serve the checkpoints and tiles of the log's Merkle tree without an API key
	Private   bool // allow downloads of recordings and images from private IP addresses
	// connects to the servers of recordings and images; nil means a dialer that obeys Private
	Dial    download.Dial
	Now     func() time.Time // nil means time.Now
	Logger  *slog.Logger     // nil discards log records
	Metrics *prometheus.Registry
	// Named has the metrics that are labeled with names of accounts, nodes and deployments; nil for
	// none.
	Named prometheus.Gatherer
	// PrivateMetrics states that /metrics needs the operator's key.
	PrivateMetrics bool
	Limits         request.Limits
	Prices         domain.Prices     // prices of training, for cost estimates
	Backups        rest.Backups      // backs up the installation; nil refuses backups
	Rebuilds       rest.Rebuilds     // rebuilds the world; nil refuses rebuilds
	Queue          rest.Queue        // orders waiting jobs; nil shows no positions
	Usage          rest.PendingUsage // usage that is not yet added to the hourly totals; nil shows none
}

// A Server is the http.Handler of the whole HTTP API.
type Server struct {
	Options
	core    *request.Core
	table   []request.Operation
	routes  http.Handler
	formats errorFormats
	direct  *directRoutes // nil if direct routes are disabled
	meters  *meters
	bodies  *connection.Budget
	cors    corsPolicy
	stop    context.CancelFunc
	leaving atomic.Bool // set by LameDuck: the server is shutting down

	document  *openapi.Document
	uploads   *upload.Store
	events    *events.Service
	rest      *rest.Service
	inference *inference.Service
	audio     *audio.Service
	training  *tinker.Service
	gateway   *routing.Router
}

// Gateway returns the router of inference requests, which exchanges notes with those of other
// servers.
func (s *Server) Gateway() *routing.Router { return s.gateway }

// New returns a server. To stop the server, call Close, then wait for the requests in progress,
// then call Drain.
func New(o Options) *Server {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = prometheus.NewRegistry()
	}
	if o.Idempotency == nil {
		o.Idempotency = idempotency.NewMemory()
	}
	o.Cluster = cmp.Or(o.Cluster, DefaultCluster)
	o.Limits = o.Limits.WithDefaults()
	closing, stop := context.WithCancel(context.Background())
	s := &Server{Options: o, meters: newMeters(o), bodies: connection.NewBudget(o.Limits.Bodies), stop: stop,
		uploads: upload.NewStore(o.Blobs, o.World), events: events.NewService(o.Log, o.Logger,
			events.Options{Audit: o.Audit, Proofs: o.Proofs, PublicLog: o.PublicLog})}
	s.core = request.NewCore(&request.Core{Log: o.Log, World: o.World, Idempotency: o.Idempotency, LastUsed: o.LastUsed,
		Logger:    o.Logger,
		Addresses: o.Addresses,
		Pepper:    o.Pepper, Now: o.Now, Space: o.Space, Limits: o.Limits, Busy: request.NewCounters(), Closing: closing})
	if o.Login != nil {
		s.core.Tokens = o.Login
	}
	router := routing.NewRouter(o.Replicas, o.Meter, o.Metrics, o.Pepper)
	s.gateway = router
	routes := routing.NewDirectRoutes(o.Direct, o.Pepper, o.World)
	s.rest = rest.NewService(rest.Options{Uploads: s.uploads, Events: s.events, LastServed: router.LastServed,
		Routes: routes, Sealer: o.Sealer, Scorer: o.Scorer, Cluster: o.Cluster, ReaderURL: o.ReaderURL, Prices: o.Prices,
		Queue: o.Queue, Usage: o.Usage, Backups: o.Backups, Rebuilds: o.Rebuilds})
	s.inference = inference.NewService(inference.Options{Router: router, Uploads: s.uploads, Strict: o.Strict,
		Private: o.Private, Dial: o.Dial}, o.Limits, o.Metrics)
	s.audio = audio.NewService(audio.Options{Router: router, Uploads: s.uploads, Strict: o.Strict, Private: o.Private,
		Dial: o.Dial},
		o.Limits, o.Metrics)
	if o.Journal == nil {
		o.Journal = operations.New(o.Blobs, nil)
	}
	s.training = tinker.NewService(tinker.Options{Journal: o.Journal, Blobs: o.Blobs, Address: o.Address,
		Hold: o.TrainingHold, Touch: o.World.Live().TouchTraining})
	s.document = openapi.New(errorSamples, documentation, rest.Documentation, events.Documentation,
		inference.Documentation, audio.Documentation)
	s.table = s.operations()
	s.document.Describe(s.table)
	s.cors = newCORSPolicy(o.Origins, s.table)
	s.formats = formatsOf(s.table)
	s.routes = s.router()
	if routes != nil {
		s.direct = newDirectRoutes(s, routes)
	}
	return s
}

// errorSamples are the examples of errors in the OpenAPI document whose messages contain limits.
var errorSamples = map[int]*domain.Error{
	http.StatusTooManyRequests: request.ErrorOf(inference.TooManyCompletions("lumen-outdoor",
		request.DefaultLimits.Generations)),
	http.StatusServiceUnavailable: request.ErrorOf(
		routing.NoReplicaReady("accounts/lumen-outdoor/deployments/support-assistant",
			request.DefaultLimits.Wake, routing.TryAgain)),
}

// LameDuck prepares a shutdown: the server reports that it is not ready, so that load balancers
// send requests to other servers, and it closes each connection after its next response. It still
// serves requests.
func (s *Server) LameDuck() { s.leaving.Store(true) }

// Close ends the streams of events and the retries of requests on other replicas.
func (s *Server) Close() {
	s.stop()
	s.events.Close()
}

// Drain waits for background work, such as recording the last use of API keys. It must be called
// when no request is in progress.
func (s *Server) Drain() { s.core.Drain() }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x, r := connection.Begin(&s.Limits, s.bodies, w, r)
	defer x.End()
	w = x
	if s.leaving.Load() {
		w.Header().Set("Connection", "close")
	}
	if label, ok := s.direct.labelOf(r); ok {
		s.direct.serve(label, w, r)
		return
	}
	s.routes.ServeHTTP(w, r)
}

// signedPath is the prefix of the paths of signed URLs, with which clients upload and download
// files.
const signedPath = "/blobs/"

func (s *Server) router() http.Handler {
	r := chi.NewRouter()
	r.Use(s.identify, s.observe, s.recover, s.cors.allow, s.options, middleware.GetHead)
	r.NotFound(s.noSuchPath)
	r.MethodNotAllowed(s.noSuchMethod)
	r.Handle(signedPath+"*", s.uploads.Handler())
	for i := range s.table {
		s.offer(r, &s.table[i])
	}
	return r
}

func (s *Server) noSuchPath(w http.ResponseWriter, r *http.Request) {
	f := domain.Errorf(domain.NotFound,
		"there is no path %s%s; resources are at /v1/accounts/ACCOUNT/COLLECTION/ID, completions at "+
			"/inference/v1/completions; /docs lists the operations", wire.Quote(r.URL.Path),
		suggestedCollection(r.URL.Path))
	if reason := unsupportedReason(r.URL.Path); reason != "" {
		f.Message = fmt.Sprintf("there is no path %s: %s", wire.Quote(r.URL.Path), reason)
	}
	f.Reason = "NO_SUCH_PATH"
	if meant := s.formats.intendedPath(r.URL.Path); meant != "" {
		f.Message = fmt.Sprintf("there is no path %s: set the base URL of the OpenAI client to the server's address "+
			"followed by /v1, so that this request goes to %s", wire.Quote(r.URL.Path), meant)
	}
	request.WriteError(w, f, request.RequestID(r), s.formats.isInference(r))
}

// suggestedCollection returns the hint of the message for a path whose collection does not exist,
// such as ": did you mean datasets"; "" without a similar collection.
func suggestedCollection(path string) string {
	parts := strings.Split(strings.TrimPrefix(path, "/v1/accounts/"), "/")
	if !strings.HasPrefix(path, "/v1/accounts/") || len(parts) < 2 {
		return ""
	}
	collection, _, _ := strings.Cut(parts[1], ":")
	if domain.KindOf(collection) != nil {
		return ""
	}
	return strings.TrimSuffix(domain.DidYouMean(collection, domain.Collections()), "?")
}

// noSuchMethod rejects a request whose method the path does not allow, with 405, or whose verb does
// not exist, with 404.
func (s *Server) noSuchMethod(w http.ResponseWriter, r *http.Request) {
	allowed := strings.Join(s.methodsOf(r), ", ")
	f := &domain.Error{Code: domain.Unimplemented, Reason: request.ReasonMethod,
		Message: fmt.Sprintf("the path does not allow the method %s: use one of %s", wire.Quote(r.Method), allowed)}
	if allowed == "" {
		f = &domain.Error{Code: domain.NotFound, Reason: "NO_SUCH_PATH",
			Message: fmt.Sprintf("the path has no operation %s %s: correct the verb after the colon; /docs lists the "+
				"operations", r.Method,
				wire.Quote(":"+request.VerbOf(r.URL.Path)))}
	} else {
		w.Header().Set("Allow", allowed)
	}
	request.WriteError(w, f, request.RequestID(r), s.formats.isInference(r))
}
