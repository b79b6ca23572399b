package coordinator

import (
	"context"
	"log/slog"
	"slices"

	"github.com/nats-io/nats.go"

	"anneal/domain"
	"anneal/workers/protocol"
)

// heartbeats handles the heartbeats of agents.
type heartbeats struct {
	recorder
	requests     *requests
	sessions     *nodeSessions
	observations *observations
	metrics      *metricsFiles
	assigner     *assigner
	logger       *slog.Logger
}

// observe records the live status in a heartbeat. Every control plane observes every heartbeat; one
// of them also replies to it: see handle.
func (h *heartbeats) observe(node string, m *nats.Msg) {
	var heartbeat protocol.Heartbeat
	if row, ok := h.world.View().Nodes.Get(nodeName(node)); !ok || row.State.Access.PublicKey == "" {
		return // the node was revoked, and its connection will be closed
	}
	if protocol.Unmarshal(m.Data, &heartbeat) == nil && !heartbeat.Leaving {
		h.recordStatus(node, heartbeat)
	}
}

// handle replies to a heartbeat with the assignments of the node.
func (h *heartbeats) handle(ctx context.Context, node string, m *nats.Msg) {
	var heartbeat protocol.Heartbeat
	if !h.requests.decode(ctx, node, m, &heartbeat) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	// The reply is sent when the session is unlocked: the agent may send its next heartbeat at once.
	assignments, handled, err := h.tryProcess(ctx, node, heartbeat)
	switch {
	case !handled:
		h.logger.Debug("ignored a heartbeat, because an earlier one of the node is still being handled", "node", node)
	case err == nil:
		h.requests.respond(m, assignments)
	case isRefused(err):
		h.requests.refuse(m, node, err)
	default: // send no reply: the agent soon sends another heartbeat
		h.logger.Debug("cannot answer a heartbeat: the agent sends another one", "node", node, "error", err)
	}
}

// tryProcess calls process with the session of a node. handled is false when an earlier heartbeat of
// the node is still being processed, so that the heartbeats of one node use only one of the
// coordinator's slots.
func (h *heartbeats) tryProcess(
	ctx context.Context, node string, heartbeat protocol.Heartbeat,
) (assignments protocol.Assignments, handled bool, err error) {
	session := h.sessions.get(node)
	if !session.mu.TryLock() {
		return assignments, false, nil
	}
	defer session.mu.Unlock()
	assignments, err = h.process(ctx, node, session, heartbeat)
	return assignments, true, err
}

func (h *heartbeats) process(
	ctx context.Context, node string, session *nodeSession, heartbeat protocol.Heartbeat,
) (protocol.Assignments, error) {
	if err := session.accept(heartbeat); err != nil {
		return protocol.Assignments{}, err
	}
	if err := h.catchUpTo(ctx, node, heartbeat.Seen); err != nil {
		return protocol.Assignments{}, err
	}
	if heartbeat.Leaving {
		err := h.deregisterNode(ctx, node)
		return protocol.Assignments{Version: protocol.Version, Position: h.world.Position()}, err
	}
	register := domain.RegisterNode{NodeSpec: heartbeat.Node, Enrolled: true}
	if err := h.doIfChanged(ctx, node, domain.Intend(domain.Nodes, nodeName(node), register)); err != nil {
		return protocol.Assignments{}, err
	}
	h.recordStatus(node, heartbeat)
	if err := h.observations.record(ctx, node, session, heartbeat); err != nil {
		return protocol.Assignments{}, err
	}
	h.metrics.storePreviews(ctx, node, session, heartbeat)
	return h.assigner.assign(ctx, node, session, heartbeat)
}

// catchUpTo waits until the world has reached seen, the highest log position that the agent has
// received. When the log ends before seen, because a power failure removed its newest events, it
// waits for the end of the log instead.
func (h *heartbeats) catchUpTo(ctx context.Context, node string, seen uint64) error {
	if h.world.Position() >= seen {
		return nil
	}
	last, err := h.log.Last(ctx)
	if err != nil {
		return err
	}
	if last.Position < seen {
		h.logger.Warn("an agent has received a log position that is beyond the end of the log: the log has lost its "+
			"newest events, for example in a power failure; repeat the changes that are missing",
			"node", node, "seen", seen, "last", last.Position)
	}
	return h.world.WaitFor(ctx, min(seen, last.Position))
}

// deregisterNode marks a node whose agent has been shut down as lost, and requeues its jobs without
// counting a failure. If this process stops before that, a scheduler requeues the jobs.
func (h *heartbeats) deregisterNode(ctx context.Context, node string) error {
	requeue := h.requeueJobs(node)
	lose := domain.LoseNode{Reason: "the agent of the node was shut down", Seen: h.now(), Left: true}
	if err := h.do(ctx, node, domain.Intend(domain.Nodes, nodeName(node), lose)); err != nil {
		return err
	}
	h.world.Live().Forget(nodeName(node))
	for _, intent := range requeue {
		if err := h.do(ctx, node, intent); err != nil && !isRefused(err) { // a refusal is no error: the job has changed
			return err
		}
	}
	return nil
}

// requeueJobs returns an intent for each job of a node: to requeue it or, when it is being canceled
// or paused, to confirm that it has stopped. That includes jobs whose attempt also runs on other
// nodes.
func (h *heartbeats) requeueJobs(node string) (intents []domain.Intent) {
	view := h.world.View()
	for _, a := range allocations(view, node) {
		j, ok := jobNamed(view, a.For)
		if !ok || a.Attempt != j.Life.Attempt || !slices.Contains(j.Life.Nodes, nodeName(node)) {
			continue
		}
		var command domain.Command[domain.JobLife] = domain.RequeueJob{Attempt: a.Attempt,
			Reason: describeNode(node) + " was shut down", Preempted: true}
		if j.Life.Stopping() {
			command = j.Life.ConfirmStop(a.Attempt)
		}
		intents = append(intents, domain.IntendJob(j.Name, command).Of(j.Event))
	}
	return intents
}
