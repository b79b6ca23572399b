package coordinator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	"anneal/workers/protocol"
)

// handleWithin bounds the work on one message.
const handleWithin = 25 * time.Second

// A nodeBook is what the desk remembers of a node.
//
// It tells an agent that was restarted from one that has not yet begun what it
// was given: what the world wants there, what another boot was given and what
// this boot does not list was lost with that boot. The agent knows the same
// from its own notes (agent/begun.go), and that outlives the desk; this here
// is for nodes whose disk is lost together with the agent.
type nodeBook struct {
	mu         sync.Mutex
	boot       string
	number     uint64            // of the newest beat of that boot
	superseded []string          // boots that another has replaced
	given      map[string]string // attempt → boot that was told to begin it
	shown      map[string]shown  // attempt → its metrics that were stored last: see showMetrics

	felt struct {
		mu     sync.Mutex
		boot   string
		number uint64 // of the newest beat of that boot in the pulse
	}
}

type shown struct {
	step int
	time time.Time
}

const maxSuperseded = 16

func (d *Coordinator) book(node string) *nodeBook {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.nodes[node]
	if b == nil {
		b = &nodeBook{given: map[string]string{}, shown: map[string]shown{}}
		d.nodes[node] = b
	}
	return b
}

// turn answers why the beat is not to be acted on, nil when it is the newest.
func (b *nodeBook) turn(beat protocol.Heartbeat) error {
	switch {
	case slices.Contains(b.superseded, beat.Boot):
		return &domain.Error{Code: domain.FailedPrecondition, Reason: protocol.TakenOver,
			Message: "another agent runs under this node's name since: stop one of them, or give it a name of its own"}
	case beat.Boot == b.boot && beat.Number <= b.number:
		return domain.Errorf(domain.Aborted, "a newer beat came first")
	case beat.Boot != b.boot && b.boot != "":
		b.superseded = append(b.superseded, b.boot)
		if extra := len(b.superseded) - maxSuperseded; extra > 0 {
			b.superseded = slices.Delete(b.superseded, 0, extra)
		}
	}
	b.boot, b.number = beat.Boot, beat.Number
	return nil
}

// new tells whether this desk has known no other boot of the node. What such an
// agent has lost, it lost while the desk was away: an agent in the control
// plane's own process ends whenever that does. So it is nobody's failure, or a
// control plane that is restarted often would fail every job that trains; only
// a row of attempts that all end so is the job's (domain.MaxFailures).
func (b *nodeBook) new() bool { return len(b.superseded) == 0 }

// overhear keeps the pulse of a beat that any desk may answer.
func (d *Coordinator) overhear(node string, m *nats.Msg) {
	var beat protocol.Heartbeat
	if row, ok := d.World.View().Nodes.Get(nodeName(node)); !ok || row.State.Access.PublicKey == "" {
		return // revoked, and its connection is about to be closed
	}
	if protocol.Unmarshal(m.Data, &beat) == nil && !beat.Leaving {
		d.feel(node, beat)
	}
}

// beat answers what should run on the node.
func (d *Coordinator) beat(node string, m *nats.Msg) {
	var beat protocol.Heartbeat
	if !d.read(node, m, &beat) {
		return
	}
	ctx, cancel := context.WithTimeout(d.ctx, handleWithin)
	defer cancel()
	book := d.book(node)
	if !book.mu.TryLock() { // an earlier beat is being answered; one node takes no more than one place at the desk
		d.log.Debug("a beat comes while another is answered", "node", node)
		return
	}
	defer book.mu.Unlock()
	orders, err := d.attend(ctx, node, book, beat)
	switch {
	case err == nil:
		d.respond(m, orders)
	case isFault(err):
		d.log.Warn("an agent is refused", "node", node, "error", err)
		d.respond(m, protocol.Refusal{Version: protocol.Version, Refused: protocol.ErrorOf(err)})
	default: // it asks again soon
		d.log.Debug("a beat is not answered", "node", node, "error", err)
	}
}

func (d *Coordinator) attend(ctx context.Context, node string, book *nodeBook, beat protocol.Heartbeat) (protocol.Assignments, error) {
	if err := book.turn(beat); err != nil {
		return protocol.Assignments{}, err
	}
	if err := d.catchUp(ctx, node, beat.Seen); err != nil {
		return protocol.Assignments{}, err
	}
	if beat.Leaving {
		err := d.dismiss(ctx, node)
		return protocol.Assignments{Version: protocol.Version, Position: d.World.Position()}, err
	}
	if err := d.do(ctx, node, domain.Intend(domain.Nodes, nodeName(node), domain.RegisterNode{NodeSpec: beat.Node, Enrolled: true})); err != nil {
		return protocol.Assignments{}, err
	}
	d.feel(node, beat)
	if err := d.settle(ctx, node, book, beat); err != nil {
		return protocol.Assignments{}, err
	}
	d.showMetrics(ctx, node, book, beat)
	return d.orders(ctx, node, book, beat)
}

// catchUp waits until this desk knows what any desk has told the agent. A log
// that lost its end in a power failure never comes to that position: then
// there is nothing to wait for.
func (d *Coordinator) catchUp(ctx context.Context, node string, seen uint64) error {
	if d.World.Position() >= seen {
		return nil
	}
	last, err := d.Log.Last(ctx)
	if err != nil {
		return err
	}
	if last.Position < seen {
		d.log.Warn("a node knows of events that the log does not have", "node", node, "seen", seen, "last", last.Position)
	}
	return d.World.WaitFor(ctx, min(seen, last.Position))
}

// dismiss loses a node whose agent has said goodbye. That event says all that
// follows: its jobs are queued again, which is no failure of theirs. The desk
// does so at once; should it stop in between, a scheduler does.
func (d *Coordinator) dismiss(ctx context.Context, node string) error {
	jobs := d.takeBack(node)
	err := d.do(ctx, node, domain.Intend(domain.Nodes, nodeName(node), domain.LoseNode{Reason: "the agent was shut down", Seen: d.Now(), Left: true}))
	if err != nil {
		return err
	}
	d.World.Live().Forget(nodeName(node))
	for _, intent := range jobs {
		if err := d.do(ctx, node, intent); err != nil && !isFault(err) { // of a fault, something else became of the job just now
			return err
		}
	}
	return nil
}

// takeBack queues the jobs of a node again, also those that work on others too.
func (d *Coordinator) takeBack(node string) (intents []domain.Intent) {
	view := d.World.View()
	for _, a := range allocated(view, node) {
		j, ok := jobNamed(view, a.For)
		if !ok || a.Attempt != j.Life.Attempt || !slices.Contains(j.Life.Nodes, nodeName(node)) {
			continue
		}
		var command domain.Command[domain.JobLife] = domain.RequeueJob{Attempt: a.Attempt, Reason: "node " + node + " was shut down", Preempted: true}
		if j.Life.State == domain.JobCancellingState {
			command = domain.ConfirmCancel{Attempt: a.Attempt}
		}
		intents = append(intents, domain.IntendJob(j.Name, command))
	}
	return intents
}

// feel keeps what the beat says about now. Each is handled by a goroutine of its
// own: one that a later one has overtaken adds its rows of metrics alone.
func (d *Coordinator) feel(node string, beat protocol.Heartbeat) {
	felt := &d.book(node).felt
	felt.mu.Lock()
	defer felt.mu.Unlock()
	overtaken := beat.Boot == felt.boot && beat.Number < felt.number
	if !overtaken {
		felt.boot, felt.number = beat.Boot, beat.Number
	}
	now, pulse, view := d.Now(), d.World.Live(), d.World.View()
	pulse.Heartbeat(nodeName(node), now)
	for _, a := range beat.Attempts {
		j, ok := jobNamed(view, a.Job)
		if a.Phase == protocol.Lost || !ok || !j.CreateTime.Equal(a.CreateTime) || !given(j, nodeName(node), a.Attempt) {
			continue
		}
		progress := projections.Progress{Made: j.CreateTime, Attempt: a.Attempt, Step: a.Step, Steps: a.Steps, Time: now}
		rows := make([]projections.MetricRow, 0, len(a.Rows))
		for _, row := range a.Rows[:min(len(a.Rows), protocol.MaxRows)] {
			rows = append(rows, rowOf(row))
			progress.Epoch, progress.LearningRate, progress.Tokens = row.Epoch, row.LearningRate, row.Tokens
		}
		pulse.Report(a.Job, progress, rows...)
	}
	for _, r := range beat.Replicas {
		if overtaken || !replicaOn(view, nodeName(node), r) {
			continue
		}
		pulse.Load(r.Deployment, r.Replica, projections.ReplicaLoad{
			Node: nodeName(node), Ready: r.State == domain.ReplicaReady,
			Active: r.Load.Active, Queued: r.Load.Queued, Slots: r.Load.Slots,
			RequestsPerSecond: r.Load.RequestsPerSecond, PromptTokensPerSecond: r.Load.PromptTokensPerSecond,
			TokensPerSecond: r.Load.TokensPerSecond, Time: now, Addons: addonStates(r),
		})
	}
}

func rowOf(m engines.Metrics) projections.MetricRow {
	return projections.MetricRow{Step: m.Step, Steps: m.Steps, Epoch: m.Epoch, Time: m.Time,
		LearningRate: m.LearningRate, Tokens: m.Tokens, Values: m.Values}
}

// given tells whether the attempt is the job's current one and the node's to
// carry out. Of a gang the first node carries it out; the others are set aside
// for engines that spread a training by themselves.
func given(j job, node domain.Name, attempt int) bool {
	return attempt == j.Life.Attempt && j.Life.Active() && j.Life.Nodes[0] == node
}

// allocated are the parts of a node that are given away.
func allocated(v *projections.View, node string) []domain.Allocation {
	row, ok := v.Nodes.Get(nodeName(node))
	if !ok {
		return nil
	}
	return row.State.Allocated()
}

// replicaOf is the replica that an allocation of the node is for.
func replicaOf(v *projections.View, node domain.Name, a domain.Allocation) (domain.Replica, bool) {
	row, ok := v.Deployments.Get(a.For)
	if !ok || a.Replica == "" {
		return domain.Replica{}, false
	}
	r, ok := row.State.Replicas[a.Replica]
	return r, ok && r.Node == node
}

// replicaOn tells whether a replica of a beat is one that the node should have.
func replicaOn(v *projections.View, node domain.Name, r protocol.Replica) bool {
	row, ok := v.Deployments.Get(r.Deployment)
	return ok && row.CreateTime.Equal(r.CreateTime) && row.State.Replicas[r.Replica].Node == node
}

// settle turns what the beat says into facts: replicas move on or have failed,
// and attempts are found to be lost.
func (d *Coordinator) settle(ctx context.Context, node string, book *nodeBook, beat protocol.Heartbeat) error {
	if err := d.settleAddons(ctx, node, beat, d.World.View()); err != nil {
		return err
	}
	if err := d.settleHot(ctx, node, beat, d.World.View()); err != nil {
		return err
	}
	view := d.World.View()
	for _, r := range beat.Replicas {
		if !replicaOn(view, nodeName(node), r) {
			continue
		}
		if r.State == domain.ReplicaReady && !equipped(view, r) {
			r.State = domain.ReplicaInitializing
		}
		var intent domain.Intent
		switch r.State {
		case domain.ReplicaInitializing, domain.ReplicaReady:
			intent = domain.Intend(domain.Deployments, r.Deployment, domain.AdvanceReplica{ID: r.Replica, State: r.State, Node: nodeName(node)})
		case protocol.ReplicaFailed:
			d.log.Warn("a replica failed", "replica", r.ID(), "node", node, "reason", r.Reason)
			intent = domain.Intend(domain.Deployments, r.Deployment, domain.RemoveReplica{ID: r.Replica, Reason: short(r.Reason), Failed: true})
		default:
			continue
		}
		if err := d.do(ctx, node, intent); err != nil && !isFault(err) {
			return err
		}
	}
	if err := d.missReplicas(ctx, node, book, beat, view); err != nil {
		return err
	}
	return d.settleAttempts(ctx, node, book, beat, view)
}

// missReplicas takes replicas out of service that had got further than this
// agent knows of: they were lost with an earlier one. One that was loading might
// have broken it, and counts as a failure.
func (d *Coordinator) missReplicas(ctx context.Context, node string, book *nodeBook, beat protocol.Heartbeat, view *projections.View) error {
	listed := map[string]bool{}
	for _, r := range beat.Replicas {
		if replicaOn(view, nodeName(node), r) {
			listed[r.ID()] = true
		}
	}
	for _, allocation := range allocated(view, node) {
		r, there := replicaOf(view, nodeName(node), allocation)
		if !there || listed[allocation.ID] || r.State == domain.ReplicaDownloading {
			continue
		}
		err := d.do(ctx, node, domain.Intend(domain.Deployments, allocation.For, domain.RemoveReplica{
			ID: r.ID, Reason: "the agent on node " + node + " was restarted", Failed: r.State == domain.ReplicaInitializing && !book.new()}))
		if err != nil && !isFault(err) {
			return err
		}
	}
	return nil
}

func (d *Coordinator) settleAttempts(ctx context.Context, node string, book *nodeBook, beat protocol.Heartbeat, view *projections.View) error {
	listed := map[string]string{} // attempt → phase
	for _, a := range beat.Attempts {
		if j, ok := jobNamed(view, a.Job); ok && j.CreateTime.Equal(a.CreateTime) {
			listed[a.ID()] = a.Phase
		}
	}
	for _, allocation := range allocated(view, node) {
		j, ok := jobNamed(view, allocation.For)
		if !ok || !given(j, nodeName(node), allocation.Attempt) {
			continue
		}
		id := domain.AllocationID(j.Name, j.Life.Attempt)
		phase, running := listed[id]
		boot := book.given[id]
		var command domain.Command[domain.JobLife]
		switch lost := phase == protocol.Lost || !running && boot != "" && boot != beat.Boot; {
		case j.Life.State == domain.JobCancellingState && (lost || !running):
			command = domain.ConfirmCancel{Attempt: j.Life.Attempt}
		case lost:
			command = domain.RequeueJob{Attempt: j.Life.Attempt, Reason: "the agent on node " + node + " was restarted", Orphan: book.new()}
		case !running && j.Life.StartTime != nil && d.Now().Sub(*j.Life.StartTime) > d.BeginWithin:
			command = domain.RequeueJob{Attempt: j.Life.Attempt, Reason: fmt.Sprintf("node %s did not begin it within %s", node, d.BeginWithin)}
		default:
			continue
		}
		delete(book.given, id)
		if err := d.do(ctx, node, domain.IntendJob(j.Name, command)); err != nil && !isFault(err) {
			return err
		}
	}
	return nil
}

// short bounds a text that a node wrote.
func short(text string) string {
	const most = 2000
	text = domain.Printable(text)
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
