// Package routing resolves the model names of requests to deployments, and sends requests to the
// replicas of deployments.
package routing

import (
	"context"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog/metering"
)

// A Meter records the usage of requests to models. metering.Meter implements it.
type Meter interface {
	// Record records the usage of one request. It does not wait until the record is durable.
	Record(usage metering.Record) error
}

// A Router sends requests to replicas and records the usage of the requests.
type Router struct {
	Replicas   Replicas
	Meter      Meter // nil records no usage
	LastServed *LastServed

	unreachable unreachable
}

// An Output receives a continuation.
type Output struct {
	Emit func(engines.Chunk) error
	// Restart discards the chunks emitted so far, because another replica generates the continuation
	// again after the node of the first one was lost. It is nil when the chunks are sent to the client,
	// so that a continuation that has begun is not generated again.
	Restart func()
}

// Generate generates one continuation on a replica of a target, and passes the continuation to out
// in chunks. at identifies the node of the replica.
func (r *Router) Generate(ctx context.Context, c *request.Call, target Target, session string,
	req engines.CompletionRequest, out Output) (usage engines.Usage, at Placement, err error) {
	at, err = r.Send(ctx, c, Request{target.Name, session, req.Addon, target.Choose,
		func(ctx context.Context, replica domain.Replica, addon string) (begun bool, err error) {
			req.Addon = addon
			usage, err = r.Replicas.Complete(ctx, target.Name, replica, req, func(chunk engines.Chunk) error {
				begun = true
				return out.Emit(chunk)
			})
			if begun && out.Restart != nil && isGone(err) {
				out.Restart()
				begun = false
			}
			return begun, err
		}})
	return usage, at, err
}

// Embed computes one embedding on a replica of a target. at identifies the node of the replica.
func (r *Router) Embed(ctx context.Context, c *request.Call, target Target, session string,
	req engines.EmbeddingRequest) (embedding engines.Embedding, usage engines.Usage, at Placement, err error) {
	at, err = r.Send(ctx, c, Request{target.Name, session, req.Addon, target.Choose,
		func(ctx context.Context, replica domain.Replica, addon string) (begun bool, err error) {
			req.Addon = addon
			embedding, usage, err = r.Replicas.Embed(ctx, target.Name, replica, req)
			return false, err
		}})
	return embedding, usage, at, err
}

// RecordUsage records the usage of a deployment by the call. It only logs an error of the Meter,
// because the response does not depend on the usage record. The record of a complete response to a
// request of a batch has the ID of the request, which is sent again with that ID after a crash, so
// that its usage counts once.
func (r *Router) RecordUsage(c *request.Call, deployment domain.Name, model string, used metering.Record) {
	if r.Meter == nil {
		return
	}
	used.Time, used.Request, used.Trace, used.Account, used.Key = c.Now(), c.ID, c.Trace, c.Principal.Account,
		c.Principal.Key
	used.Deployment, used.Model = deployment, model
	if c.Background && used.Complete {
		used.ID = c.ID
	}
	if err := r.Meter.Record(used); err != nil {
		c.Logger.Warn("the usage of a request was not recorded", "request", c.ID, "deployment", deployment, "error", err)
	}
}
