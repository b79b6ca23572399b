// Package workers is the desk of the control plane, where the agents of nodes
// report and are told what to run, and the way from the gateway to a replica.
package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/workers/protocol"
)

// Options say what the desk works with.
type Options struct {
	Log   eventlog.Log
	World *projections.World // which follows Log
	Blobs *blobs.Store
	Conn  *nats.Conn       // into the agents' account, with every right there
	Now   func() time.Time // nil is time.Now
	// LostAfter is how long a node may be silent before a scheduler loses it;
	// agents are told to beat several times within. 0 is 15 s.
	LostAfter time.Duration
	// BeginWithin is how long a node may take to begin an attempt that was
	// placed there, before it is queued again; 0 is 10 min.
	BeginWithin time.Duration
	// Open decrypts the secrets that an evaluator names, for the orders that
	// bring its code to a node. Nil refuses evaluators that name some.
	OpenSecret eventlog.OpenSecret
	Logger     *slog.Logger // nil is silence
}

// A Coordinator answers the agents. It decides nothing about who works where: it
// tells each node what the world says, and turns what the nodes report into
// commands. What it remembers is no more than a convenience, so it may be
// restarted at any time, and several may work at once.
type Coordinator struct {
	Options
	log    *slog.Logger
	ctx    context.Context // of Run
	limit  chan struct{}   // messages handled at once
	active sync.WaitGroup

	mu    sync.Mutex
	nodes map[string]*nodeBook
}

// NewCoordinator makes a desk; Run opens it.
func New(o Options) *Coordinator {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.LostAfter, o.BeginWithin = cmp.Or(o.LostAfter, 15*time.Second), cmp.Or(o.BeginWithin, 10*time.Minute)
	return &Coordinator{Options: o, log: o.Logger, limit: make(chan struct{}, 64), nodes: map[string]*nodeBook{}}
}

// Run answers agents, nudges those for whom something has changed, and purges
// deleted jobs, until ctx is done.
func (d *Coordinator) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.ctx = ctx
	var subscriptions []*nats.Subscription
	defer func() {
		for _, s := range subscriptions {
			_ = s.Unsubscribe() // fails only when the connection is gone, and they with it
		}
		cancel()
		d.active.Wait()
		d.finish()
	}()
	for _, one := range []struct {
		subject, queue string
		handle         func(node string, m *nats.Msg)
	}{
		// Every desk hears every beat, for the pulse of its own world; one answers.
		{protocol.HeartbeatSubject("*"), "", d.overhear},
		{protocol.HeartbeatSubject("*"), "desk", d.beat},
		{protocol.ReportSubject("*"), "desk", d.report},
		{protocol.SignSubject("*"), "desk", d.sign},
	} {
		s, err := d.subscribe(one.subject, one.queue, one.handle)
		if err != nil {
			return fmt.Errorf("listening on %s: %w", one.subject, err)
		}
		subscriptions = append(subscriptions, s)
	}
	if err := d.Conn.FlushTimeout(5 * time.Second); err != nil {
		return fmt.Errorf("opening the desk: %w", err)
	}
	d.active.Go(d.purge)
	d.nudge()
	return ctx.Err()
}

// subscribe hands each message to a goroutine of its own, a bounded number at
// a time. The node is who NATS let publish on the subject.
func (d *Coordinator) subscribe(subject, queue string, handle func(node string, m *nats.Msg)) (*nats.Subscription, error) {
	return d.Conn.QueueSubscribe(subject, queue, func(m *nats.Msg) {
		node := strings.Split(m.Subject, ".")[1]
		if !domain.ValidID(node) {
			return
		}
		select {
		case d.limit <- struct{}{}:
		case <-d.ctx.Done():
			return
		}
		go func() {
			defer func() { <-d.limit }()
			handle(node, m)
		}()
	})
}

// finish returns once no message is handled any more; ctx must be done. Who
// handles one holds a place, so all places are free when nobody does.
func (d *Coordinator) finish() {
	for range cap(d.limit) {
		d.limit <- struct{}{}
	}
	for range cap(d.limit) {
		<-d.limit
	}
}

// read reads a message, and refuses one that it cannot read, or whose node was
// revoked since it connected.
func (d *Coordinator) read(node string, m *nats.Msg, message any) bool {
	err := d.mayReport(node)
	if err == nil {
		err = protocol.Unmarshal(m.Data, message)
	}
	if err != nil && !isFault(err) { // it asks again
		d.log.Debug("a message is not answered", "node", node, "error", err)
		return false
	}
	if err != nil {
		d.log.Warn("an agent is refused", "node", node, "error", err)
		d.respond(m, protocol.Refusal{Version: protocol.Version, Refused: protocol.ErrorOf(err)})
	}
	return err == nil
}

// mayReport tells whether the node has enrolled. Before it says no it makes sure
// that it knows the newest facts: another control plane may have let it in.
func (d *Coordinator) mayReport(node string) error {
	enrolled := func() bool {
		row, ok := d.World.View().Nodes.Get(nodeName(node))
		return ok && row.State.Access.PublicKey != ""
	}
	if enrolled() {
		return nil
	}
	ctx, cancel := context.WithTimeout(d.ctx, handleWithin)
	defer cancel()
	last, err := d.Log.Last(ctx)
	if err == nil {
		err = d.World.WaitFor(ctx, last.Position)
	}
	if err == nil && !enrolled() {
		err = &domain.Error{Code: domain.PermissionDenied, Reason: "NODE_NOT_ENROLLED", Message: "the node was revoked or removed: join again with a new token"}
	}
	return err
}

func (d *Coordinator) respond(m *nats.Msg, answer any) {
	data, err := protocol.Marshal(answer)
	if err == nil {
		err = m.Respond(data)
	}
	if err != nil && !errors.Is(err, nats.ErrMsgNoReply) {
		d.log.Warn("an answer to a node is lost", "subject", m.Subject, "error", err)
	}
}

// do carries out a command that a node caused, and waits until the world shows it.
func (d *Coordinator) do(ctx context.Context, node string, intent domain.Intent) error {
	change, err := eventlog.Do(ctx, d.Log, d.World, eventlog.Request{Time: d.Now(), Actor: string(nodeName(node))}, intent)
	if err != nil {
		return err
	}
	return d.World.WaitFor(ctx, change.Position())
}

func nodeName(id string) domain.Name { return domain.NewName(domain.System, "nodes", id) }

// isFault tells an answer of the domain from trouble that may pass.
func isFault(err error) bool {
	var fault *domain.Error
	return errors.As(err, &fault) && fault.Code != domain.Aborted && fault.Code != domain.Unavailable
}
