// Package coordinator is the control plane's side of the worker nodes. A Coordinator responds to
// the heartbeats and reports of agents, an Admission authenticates them, and a ReplicaClient sends
// requests of the gateway to their replicas.
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
	"anneal/eventlog"
	"anneal/eventlog/secrets"
	"anneal/projections"
	"anneal/workers/protocol"
)

// Options configure a Coordinator.
type Options struct {
	Log   eventlog.Log
	World *projections.World // follows Log
	Blobs *blobs.Store
	Conn  *nats.Conn       // connection to the NATS account of the agents, with full permissions
	Now   func() time.Time // nil is time.Now
	// LostAfter is the time without a heartbeat after which a scheduler marks a node as lost;
	// agents send several heartbeats in that time. 0 is 15 s.
	LostAfter time.Duration
	// BeginWithin is the time in which a node must start an attempt that was assigned to it,
	// before the attempt is re-queued. 0 is 10 min.
	BeginWithin time.Duration
	// OpenSecret decrypts the secrets of evaluators for the attempts that need them. If OpenSecret is
	// nil, such attempts fail.
	OpenSecret secrets.OpenFunc
	// Secret derives the keys of gangs. Control planes of one installation must have the same one. If
	// it is empty, attempts on several nodes train on the first.
	Secret []byte
	Logger *slog.Logger // nil discards log messages
}

// A Coordinator responds to agents. It makes no scheduling decisions: it sends each node the work
// that the world assigns to the node, and turns the reports of nodes into commands. It may restart
// at any time, and several coordinators may run concurrently, because correctness depends only on
// the log.
type Coordinator struct {
	conn       *nats.Conn
	recorder   recorder
	requests   *requests
	heartbeats *heartbeats
	reports    *reports
	listener   *listener
	logger     *slog.Logger
}

// New returns a Coordinator; Run starts it.
func New(o Options) *Coordinator {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.LostAfter, o.BeginWithin = cmp.Or(o.LostAfter, 15*time.Second), cmp.Or(o.BeginWithin, 10*time.Minute)
	recorder := recorder{log: o.Log, world: o.World, now: o.Now}
	requests := &requests{recorder: recorder, conn: o.Conn, logger: o.Logger, slots: make(chan struct{}, maxConcurrent)}
	metrics := &metricsFiles{world: o.World, blobs: o.Blobs, now: o.Now, logger: o.Logger}
	c := &Coordinator{
		conn: o.Conn, recorder: recorder, requests: requests, logger: o.Logger,
		heartbeats: &heartbeats{
			recorder: recorder, requests: requests, metrics: metrics, logger: o.Logger,
			sessions:     &nodeSessions{nodes: map[string]*nodeSession{}},
			observations: &observations{recorder: recorder, beginWithin: o.BeginWithin, logger: o.Logger},
			assigner: &assigner{recorder: recorder, blobs: o.Blobs, openSecret: o.OpenSecret, gangSecret: o.Secret,
				interval: min(maxInterval, o.LostAfter/5), logger: o.Logger},
		},
		reports: &reports{recorder: recorder, requests: requests, blobs: o.Blobs, logger: o.Logger,
			results: &results{recorder: recorder, blobs: o.Blobs, metrics: metrics, logger: o.Logger}},
	}
	c.listener = newListener(o, c.heartbeats.observe)
	return c
}

// queueGroup is the NATS queue group in which one coordinator responds to each request.
// Coordinators of different releases share it, so its name never changes.
const queueGroup = "desk"

// Run responds to agents, wakes those whose assignments changed, and purges deleted jobs, until ctx
// is done.
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
	}()
	for _, one := range []struct {
		subject, queue string
		handle         handler
	}{
		// One of the coordinators replies to a heartbeat. Every coordinator records the live status in
		// it: see listener.
		{protocol.HeartbeatSubject("*"), queueGroup, c.heartbeats.handle},
		{protocol.ReportSubject("*"), queueGroup, c.reports.handle},
		{protocol.SignSubject("*"), queueGroup, c.reports.handleSign},
	} {
		s, err := c.requests.subscribe(ctx, one.subject, one.queue, one.handle)
		if err != nil {
			return fmt.Errorf("subscribe to %s: %w", one.subject, err)
		}
		subscriptions = append(subscriptions, s)
	}
	// The local agent starts after this flush. If the connection is lost now, the subscriptions are
	// made when it is back.
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
	c.notify(ctx)
	return ctx.Err()
}
