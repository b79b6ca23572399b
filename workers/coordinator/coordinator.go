// Package coordinator is the control plane's side of the worker nodes. A Coordinator answers the
// heartbeats and reports of agents, an Admission authenticates agents, and a ReplicaClient sends
// requests of the gateway to replicas on the nodes.
package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/blobs"
	"anneal/blobs/operations"
	"anneal/eventlog"
	"anneal/eventlog/secrets"
	"anneal/projections"
	"anneal/workers/protocol"
)

// Options configure a Coordinator.
type Options struct {
	Log   eventlog.Log
	World *projections.World // state of all resources; must fold the events of Log: see World.Run
	Blobs *blobs.Store
	Conn  *nats.Conn       // connection into the NATS account AGENTS that may use all subjects of the account
	Now   func() time.Time // returns the current time; nil means time.Now
	// LostAfter is the time without a heartbeat after which a scheduler marks a node as lost.
	// Agents send several heartbeats in that time. 0 means 15 s.
	LostAfter time.Duration
	// BeginWithin is how long a node may take to start an assigned attempt, after which the job is
	// requeued. 0 means 10 min.
	BeginWithin time.Duration
	// Journal has the operations of training runs. When it is nil, the coordinator serves none.
	Journal *operations.Store
	// IdleAfter is the time without use after which a training service stops. 0 means 5 min.
	IdleAfter time.Duration
	// OpenSecret decrypts the secrets of evaluators for attempts that need them. When it is nil, such
	// attempts fail.
	OpenSecret secrets.OpenFunc
	// Secret is the secret from which the encryption keys of gangs are derived. All control planes of
	// an installation must have the same one. When it is empty, an attempt on several nodes trains
	// only on the first.
	Secret []byte
	Logger *slog.Logger // receives log messages; nil discards them
}

// A Coordinator answers agents. It makes no scheduling decisions: it sends each node the work that
// the world allocates to it, and turns the reports of nodes into commands. It may be restarted at
// any time, and several control planes may run one, because only the log has state on which
// correctness depends.
type Coordinator struct {
	conn       *nats.Conn
	recorder   recorder
	requests   *requests
	heartbeats *heartbeats
	reports    *reports
	listener   *listener
	training   *training
	prober     *prober
	logger     *slog.Logger
}

// New returns a Coordinator. Call Run to start it.
func New(o Options) *Coordinator {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.LostAfter, o.BeginWithin = cmp.Or(o.LostAfter, 15*time.Second), cmp.Or(o.BeginWithin, 10*time.Minute)
	o.IdleAfter = cmp.Or(o.IdleAfter, 5*time.Minute)
	recorder := recorder{log: o.Log, world: o.World, now: o.Now}
	requests := &requests{recorder: recorder, conn: o.Conn, logger: o.Logger, slots: make(chan struct{}, maxConcurrent)}
	metrics := &metricsFiles{world: o.World, blobs: o.Blobs, now: o.Now, logger: o.Logger}
	progress := &serviceProgress{attempts: map[string]int{}}
	c := &Coordinator{
		conn: o.Conn, recorder: recorder, requests: requests, logger: o.Logger,
		heartbeats: &heartbeats{
			recorder: recorder, requests: requests, metrics: metrics, logger: o.Logger,
			sessions:     &nodeSessions{nodes: map[string]*nodeSession{}},
			observations: &observations{recorder: recorder, beginWithin: o.BeginWithin, progress: progress, logger: o.Logger},
			assigner: &assigner{recorder: recorder, blobs: o.Blobs, openSecret: o.OpenSecret, gangSecret: o.Secret,
				interval: min(maxInterval, o.LostAfter/5), idleAfter: o.IdleAfter, logger: o.Logger},
		},
		reports: &reports{recorder: recorder, requests: requests, blobs: o.Blobs, logger: o.Logger,
			results:  &results{recorder: recorder, blobs: o.Blobs, metrics: metrics, logger: o.Logger},
			progress: progress},
	}
	if o.Journal != nil {
		c.training = newTraining(o, recorder, c, progress)
	}
	c.listener = newListener(o, c.heartbeats.observe)
	c.prober = &prober{conn: o.Conn, world: o.World, now: o.Now}
	return c
}

// queueGroup is the NATS queue group by which one of the coordinators gets each request.
// Coordinators of different releases must share it, so its name never changes.
const queueGroup = "desk"

// Run answers agents, wakes those whose assignments have changed, and purges deleted jobs, until
// ctx is done.
func (c *Coordinator) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var subscriptions []*nats.Subscription
	var background sync.WaitGroup
	defer func() {
		for _, s := range subscriptions {
			_ = s.Unsubscribe() // fails only when the connection is closed, which also ends the subscription
		}
		cancel()
		background.Wait()
		c.requests.drain()
		if c.training != nil {
			c.training.polls.drain()
		}
	}()
	for _, one := range []struct {
		subject, queue string
		handle         handler
	}{
		// One of the coordinators answers a heartbeat. Each of them also records the live status in it:
		// see listener.
		{protocol.HeartbeatSubject("*"), queueGroup, c.heartbeats.handle},
		{protocol.ReportSubject("*"), queueGroup, c.reports.handle},
		{protocol.SignSubject("*"), queueGroup, c.reports.handleSign},
	} {
		s, err := c.requests.subscribe(ctx, one.subject, one.queue, one.handle)
		if err != nil {
			return fmt.Errorf("subscribe to the messages of agents on %s: %w", one.subject, err)
		}
		subscriptions = append(subscriptions, s)
	}
	if c.training != nil {
		all, err := c.training.subscribe(ctx)
		subscriptions = append(subscriptions, all...)
		if err != nil {
			return fmt.Errorf("subscribe to the messages of training services: %w", err)
		}
		background.Go(func() { c.training.sweep(ctx) })
	}
	// Flush the subscriptions before an agent in this process starts. When the connection is
	// interrupted, the NATS client subscribes after it has reconnected.
	if err := c.conn.FlushTimeout(5 * time.Second); err != nil && c.conn.IsClosed() {
		return fmt.Errorf("start the coordinator: %w", err)
	}
	pings, err := c.listener.subscribe()
	if err != nil {
		return err
	}
	subscriptions = append(subscriptions, pings)
	background.Go(func() { c.listener.run(ctx, pings) })
	background.Go(func() { c.purge(ctx) })
	background.Go(func() {
		if err := c.prober.run(ctx); err != nil && ctx.Err() == nil {
			c.logger.Warn("nodes are not probed, so dead replicas count as ready until their nodes are lost", "error", err)
		}
	})
	c.notify(ctx)
	return ctx.Err()
}
