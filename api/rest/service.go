// Package rest serves the resources of accounts. The file of each kind declares a resource, which
// has the generic operations, and the operations that only the kind has.
package rest

import (
	"context"
	"sync"

	"anneal/api/events"
	"anneal/api/openapi"
	"anneal/api/request"
	"anneal/api/routing"
	"anneal/api/upload"
	"anneal/domain"
	"anneal/engines"
	sealed "anneal/eventlog/secrets"
)

// Documentation describes the wire types of this package for the API reference.
var Documentation = openapi.Documentation{Rules: openapi.Joined(fieldRules, compatibleRules, batchRules, backupRules,
	rebuildRules, subscriptionRules, usageRules, releaseRules),
	Fields: fieldTexts, Types: openapi.Joined(typeTexts, compatibleTypeTexts, batchTypeTexts,
		backupTypeTexts, rebuildTypeTexts, subscriptionTypeTexts, usageTypeTexts, releaseTypeTexts)}

// A Sealer encrypts values that must be erasable although the log is not. Each value has a data key
// of its own, which is stored outside of the log: a value is erased by deleting its key.
type Sealer interface {
	// Seal encrypts a value for the resource name.
	Seal(ctx context.Context, name domain.Name, value []byte) (domain.Sealed, error)
	// Open decrypts a value that Seal has encrypted for the same resource. reader states which code
	// gets the value, for the audit stream.
	Open(ctx context.Context, reader sealed.Reader, name domain.Name, sealed domain.Sealed) (domain.SecretValue, error)
}

// Options configures a Service.
type Options struct {
	Uploads    *upload.Store
	Events     *events.Service
	LastServed *routing.LastServed
	Routes     *routing.DirectRoutes // nil if direct routes are disabled
	Sealer     Sealer
	Scorer     engines.Scorer // runs previews of evaluators; nil refuses previews
	Cluster    string         // name of the installation, which new deployments show as cluster
	// NATS server from which readers read the events of their account; "" if there is none
	ReaderURL string
	Prices    domain.Prices // prices of training, for cost estimates
	Backups   Backups       // nil refuses backups
	Rebuilds  Rebuilds      // nil refuses rebuilds
	Queue     Queue         // nil shows no positions of waiting jobs
	Usage     PendingUsage  // nil shows only usage that is recorded in the log
}

// A Service serves the resources of accounts.
type Service struct {
	Options
	creatingBatch *sync.Mutex
}

// NewService returns a Service.
func NewService(o Options) *Service { return &Service{o, &sync.Mutex{}} }

// A call is a request in progress, and the service that handles it.
type call struct {
	*request.Call
	*Service
	findPlaces sync.Once
	places     func(job domain.Name) (position, length int, ok bool) // result of Queue.Places; set by placeOf
}

// A handler handles a call. It returns the value of the JSON response, or nil if it has written the
// response itself.
type handler func(c *call) (any, error)

func (s *Service) handle(h handler) request.Handler {
	return func(c *request.Call) (any, error) { return h(&call{Call: c, Service: s}) }
}
