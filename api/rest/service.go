// Package rest serves the resources of accounts. The file of each kind declares a resource, which
// has the generic operations, and the operations that only this kind has.
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

// Documentation describes the wire types of this package.
var Documentation = openapi.Documentation{Rules: openapi.Joined(fieldRules, compatibleRules, batchRules, backupRules,
	rebuildRules, subscriptionRules, usageRules),
	Fields: fieldTexts, Types: openapi.Joined(typeTexts, compatibleTypeTexts, batchTypeTexts,
		backupTypeTexts, rebuildTypeTexts, subscriptionTypeTexts, usageTypeTexts)}

// A Sealer encrypts values that must be erasable. Each value has a separate data key, which is
// stored outside of the log.
type Sealer interface {
	// Seal encrypts a value for the resource name.
	Seal(ctx context.Context, name domain.Name, value []byte) (domain.Sealed, error)
	// Open decrypts a value that Seal has encrypted for the same resource. by is the code
	// that gets the value.
	Open(ctx context.Context, by sealed.Reader, name domain.Name, sealed domain.Sealed) (domain.SecretValue, error)
}

// Options configure a service.
type Options struct {
	Uploads    *upload.Store
	Events     *events.Service
	LastServed *routing.LastServed
	Routes     *routing.DirectRoutes // nil disables direct routes
	Sealer     Sealer
	Scorer     engines.Scorer // runs previews of evaluators; nil rejects previews
	Cluster    string         // name of the installation, shown on its deployments
	ReaderURL  string         // NATS server for readers of one account; "" without one
	Prices     domain.Prices  // prices of training, for estimates
	Backups    Backups        // nil refuses backups
	Rebuilds   Rebuilds       // nil refuses rebuilds
	Queue      Queue          // nil shows no positions of waiting jobs
	Usage      PendingUsage   // nil shows only usage that is rolled up
}

// A Service serves resources.
type Service struct {
	Options
	creatingBatch *sync.Mutex
}

// NewService returns a service.
func NewService(o Options) *Service { return &Service{o, &sync.Mutex{}} }

// A call is a request and the service that handles it.
type call struct {
	*request.Call
	*Service
	places func(job domain.Name) (position, length int, ok bool) // result of Queue.Places; see placeOf
}

// A handler serves a call. It returns the value of the JSON response, or nil when it has written
// the response itself.
type handler func(c *call) (any, error)

func (s *Service) handle(h handler) request.Handler {
	return func(c *request.Call) (any, error) { return h(&call{Call: c, Service: s}) }
}
