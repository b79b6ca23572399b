// Package routing finds the deployment to which the model name of a request refers, and sends the
// request to one of its replicas.
package routing

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"anneal/api/request"
	"anneal/api/routing/admission"
	"anneal/api/routing/balance"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog/metering"
)

// A Meter records the usage of requests to models. metering.Meter implements it.
type Meter interface {
	// Record records the usage of one request. It may return before the record is durable.
	Record(usage metering.Record) error
}

// A Router sends inference requests to replicas, and records their usage.
type Router struct {
	Replicas   Replicas
	Meter      Meter // nil records no usage
	LastServed *LastServed

	balancers balancers
	releases  releases
	signer    admission.Signer
}

// NewRouter returns a Router and registers its metrics. secret is the key for the hashes of
// prompts; the Routers of an installation have the same.
func NewRouter(replicas Replicas, meter Meter, metrics prometheus.Registerer, secret []byte) *Router {
	r := &Router{Replicas: replicas, Meter: meter, LastServed: NewLastServed(), signer: admission.NewSigner(secret),
		releases: releases{boot: rand.Text()},
		balancers: balancers{hasher: balance.NewHasher(secret), metrics: newBalancerMetrics(metrics),
			queueMetrics: newQueueMetrics(metrics)}}
	metrics.MustRegister(queueCollector{&r.balancers})
	return r
}

// An Output receives the continuation of a prompt.
type Output struct {
	Emit func(engines.Chunk) error
	// Restart discards the chunks that were emitted before, because another replica generates the
	// continuation again after the first replica's node was lost. It is nil if the chunks are sent
	// to the client at once: then a continuation that has begun is not generated again.
	Restart func()
	// Routed is called before each attempt with the attempt's Placement; it may be nil.
	Routed func(Placement)
	// Secondary states that the continuation is not the first one of its request, so that a release
	// does not count it as another sample.
	Secondary bool
	// Unsplit states that the deployment of the target generates the continuation, even if the
	// target has a running release.
	Unsplit bool
}

// Generate generates one continuation of a prompt on a replica of the target, and passes it to out
// in chunks. placement has the node on which the request ran. While the target has a release,
// another deployment may generate the continuation: see Placement.Deployment.
func (r *Router) Generate(ctx context.Context, c *request.Call, target Target, session string,
	req engines.CompletionRequest, out Output) (usage engines.Usage, placement Placement, err error) {
	return r.generateSplit(ctx, c, target, session, req, out)
}

// generateOn is like Generate, without releases. If wait is 0, the request waits for a replica for
// the usual time; otherwise it waits for none to be ready, and in the admission queue for at most
// wait.
func (r *Router) generateOn(ctx context.Context, c *request.Call, target Target, session string,
	req engines.CompletionRequest, out Output, wait time.Duration) (usage engines.Usage, placement Placement, err error) {
	prompt := func(addon string) balance.Prompt { return r.balancers.promptOf(&req, addon) }
	placement, err = r.Send(ctx, c, Request{Deployment: target.Name, Session: session, Addon: req.Addon,
		Choose: target.Choose, Prompt: prompt, Answer: int64(max(0, req.MaxTokens)), MaxWait: wait, ReadyOnly: wait > 0,
		Send: func(ctx context.Context, a *Attempt) (begun bool, err error) {
			if req.Addon = a.Addon; out.Routed != nil {
				out.Routed(a.placement)
			}
			generated := 0 // a request that ends early reports no usage
			usage, err = r.Replicas.Complete(ctx, target.Name, a.Replica, req, func(chunk engines.Chunk) error {
				if !begun {
					a.FirstToken()
				}
				begun = true
				generated += len(chunk.Tokens)
				return out.Emit(chunk)
			})
			a.Cached(usage.CachedTokens)
			a.Answered(max(usage.CompletionTokens, generated))
			if begun && out.Restart != nil && isDown(err) {
				out.Restart()
				begun = false
			}
			return begun, err
		}})
	return usage, placement, err
}

// Embed computes one embedding on a replica of the target. placement has the node on which the
// request ran.
func (r *Router) Embed(ctx context.Context, c *request.Call, target Target, session string,
	req engines.EmbeddingRequest) (embedding engines.Embedding, usage engines.Usage, placement Placement, err error) {
	prompt := func(string) balance.Prompt { return embeddingPromptOf(&req) }
	placement, err = r.Send(ctx, c, Request{Deployment: target.Name, Session: session, Addon: req.Addon,
		Choose: target.Choose, Prompt: prompt, Send: func(ctx context.Context, a *Attempt) (begun bool, err error) {
			req.Addon = a.Addon
			embedding, usage, err = r.Replicas.Embed(ctx, target.Name, a.Replica, req)
			return false, err
		}})
	return embedding, usage, placement, err
}

// RecordUsage records the usage of a deployment by a call. If that fails, it only logs the error,
// because the client gets its response anyway. The usage record of a batch's request has the ID of
// the request, or used.ID if that is set: after a crash the request is sent again with the same ID,
// and its usage counts once.
func (r *Router) RecordUsage(c *request.Call, deployment domain.Name, model string, used metering.Record) {
	if r.Meter == nil {
		return
	}
	used.Time, used.Request, used.Trace, used.Account, used.Key = c.Now(), c.ID, c.Trace, c.Principal.Account,
		c.Principal.Key
	used.Deployment, used.Model = deployment, model
	switch {
	case !c.Background || !used.Complete:
		used.ID = ""
	case used.ID == "":
		used.ID = c.ID
	}
	if err := r.Meter.Record(used); err != nil {
		c.Logger.Warn("the usage of a request was not recorded, and is missing in usage "+
			"totals", "request", c.ID, "deployment", deployment, "error", err)
	}
}
