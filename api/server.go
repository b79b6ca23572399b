// Package api is how the platform is asked for: HTTP, one file per collection,
// the inference gateway and the tails of events. It keeps no state of its own
// beyond connections: what it answers comes from the world, what it changes
// goes to the log.
package api

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/prometheus/client_golang/prometheus"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/blobs"
	"anneal/disk"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog"
	"anneal/eventlog/idempotency"
	"anneal/eventlog/metering"
	"anneal/projections"
)

// A Sealer encrypts what must be deletable: each value with a data key of its
// own that is kept outside the log.
type Sealer interface {
	// Seal encrypts a value for a resource.
	Seal(ctx context.Context, name domain.Name, value []byte) (domain.Sealed, error)
	// Open decrypts what Seal made for the same resource.
	Open(ctx context.Context, name domain.Name, sealed domain.Sealed) (domain.SecretValue, error)
}

// Replicas reach the running copies of a deployment's model.
type Replicas interface {
	// Complete generates one continuation on a replica and hands it to emit
	// piece by piece. It stops when ctx is done or emit fails. An error with
	// code Unavailable says that the replica cannot be reached.
	Complete(ctx context.Context, deployment domain.Name, replica domain.Replica, req engines.CompletionRequest, emit func(engines.Chunk) error) (engines.Usage, error)
	// Transcribe has a replica listen to a recording and hands to emit what it
	// hears, in the order of time. It ends, and fails, as Complete does.
	Transcribe(ctx context.Context, deployment domain.Name, replica domain.Replica, req engines.TranscriptionRequest, emit func(engines.TranscriptEvent) error) (engines.Transcript, error)
}

// A Meter records what requests to models have used. See metering.Meter.
type Meter interface {
	// Record does not wait until it is recorded.
	Record(usage metering.Record) error
}

// DefaultCluster is the name of an installation that was given none.
const DefaultCluster = "local"

// Options are what a server works with. Now and Logger may be nil; Metrics,
// when given, is where its metrics are registered and what /metrics shows.
type Options struct {
	Log      eventlog.Log
	World    *projections.World
	Blobs    *blobs.Store
	Sealer   Sealer
	Answers  request.Answers // nil keeps them in memory
	Uses     request.Uses    // nil forgets with the process when keys were used
	Meter    Meter           // nil records what requests use nowhere
	Replicas Replicas
	Space    *disk.Space    // of the server's disk; nil is not watched
	Scorer   engines.Scorer // of previews; nil refuses them
	Cluster  string         // name of the installation, shown on its deployments; "local" when it is empty
	Direct   string         // domain below which deployments have host names of their own; "" gives them none
	Pepper   []byte         // keys are hashed with it, page tokens signed
	Strict   bool           // refuse unknown inference parameters instead of warning
	// ReaderURL is of the NATS server that takes the readers of one account; "" when none does.
	ReaderURL string
	Private   bool // fetch recordings from addresses that are not public, too
	Now       func() time.Time
	Logger    *slog.Logger
	Metrics   *prometheus.Registry
	Limits    Limits
	Prices    domain.Prices // what training is counted at
}

// A Server is the http.Handler of the whole interface.
type Server struct {
	Options
	core    *request.Core
	table   []request.Operation
	about   *description
	routes  http.Handler
	direct  *directRoutes // nil when there are none
	tail    *tail
	served  *lastServed
	busy    *request.Counters
	meters  *meters
	bodies  *bodyBudget
	storage *storageLedger
	fetcher *fetcher

	closing context.Context
	close   context.CancelFunc
}

// New makes a server. Close it before the last requests are waited for.
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
	if o.Answers == nil {
		o.Answers = idempotency.NewMemory()
	}
	o.Cluster = cmp.Or(o.Cluster, DefaultCluster)
	o.Limits = o.Limits.withDefaults()
	s := &Server{Options: o, served: newLastServed(), busy: request.NewCounters(), meters: newMeters(o), storage: newStorageLedger(), bodies: newBodyBudget(o.Limits.Bodies), fetcher: newFetcher(o.Limits.Fetch, o.Private)}
	s.core = request.NewCore(&request.Core{Log: o.Log, World: o.World, Answers: o.Answers, Uses: o.Uses, Logger: o.Logger,
		Pepper: o.Pepper, Now: o.Now, Space: o.Space, MaxBody: o.Limits.Body, RepeatWait: o.Limits.Twin})
	s.closing, s.close = context.WithCancel(context.Background())
	s.table = operations(s)
	s.about = describe(s.table)
	s.tail = newTail(o.Log, o.Logger)
	s.routes = s.router()
	if o.Direct != "" {
		s.direct = newDirectRoutes(s)
	}
	return s
}

// Close ends the streams of events, and puts no question to a replica again
// whose first one failed.
func (s *Server) Close() {
	s.close()
	s.tail.close()
}

// Drain returns when nothing goes on in the background any more. Call it when
// no request is left.
func (s *Server) Drain() { s.core.Drain() }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x, r := s.begin(w, r)
	defer x.end()
	w = x
	if label, ok := s.direct.labelOf(r); ok {
		s.direct.serve(label, w, r)
		return
	}
	s.routes.ServeHTTP(w, r)
}

// Time-outs and limits of connections. No time-out bounds a whole answer, since
// streams of events and completions last as long as they last: Limits bound each
// piece of one, and bodies.
const (
	headerTime = 10 * time.Second // for a request's header, and for the first byte of a new connection
	idleTime   = 2 * time.Minute  // between two requests of a connection
	maxHeader  = 64 << 10
)

// HTTP is an http.Server with the time-outs and limits of the interface. Its
// streams end when ctx does.
func HTTP(ctx context.Context, h http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug), BaseContext: func(net.Listener) context.Context { return ctx }, ConnContext: withConn}
}

func (s *Server) router() http.Handler {
	r := chi.NewRouter()
	r.Use(s.identify, s.observe, s.recover, middleware.GetHead)
	r.NotFound(s.noSuchPath)
	r.MethodNotAllowed(s.noSuchMethod)
	r.Handle("/blobs/*", s.files()) // signed URLs lead there
	for i := range s.table {
		s.offer(r, &s.table[i])
	}
	return r
}

func (s *Server) noSuchPath(w http.ResponseWriter, r *http.Request) {
	f := domain.Errorf(domain.NotFound, "there is no such path: resources are at /v1/accounts/ACCOUNT/COLLECTION/ID, completions at /inference/v1/completions; /docs shows every operation")
	f.Reason = "NO_SUCH_PATH"
	request.WriteError(w, f, request.RequestID(r), request.IsInference(r))
}

// noSuchMethod refuses a method that the path does not answer, or a verb that
// it does not have with any.
func (s *Server) noSuchMethod(w http.ResponseWriter, r *http.Request) {
	allowed := strings.Join(s.methodsOf(r), ", ")
	f := &domain.Error{Code: domain.Unimplemented, Reason: request.ReasonMethod,
		Message: fmt.Sprintf("this path does not answer %s: it answers %s", wire.Quote(r.Method), allowed)}
	if allowed == "" {
		f = &domain.Error{Code: domain.NotFound, Reason: "NO_SUCH_PATH",
			Message: fmt.Sprintf("there is no operation %s %s here: correct its name; /docs shows every operation", r.Method, wire.Quote(":"+request.VerbOf(r.URL.Path)))}
	} else {
		w.Header().Set("Allow", allowed)
	}
	request.WriteError(w, f, request.RequestID(r), request.IsInference(r))
}
