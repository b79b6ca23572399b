package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"anneal/domain"
	"anneal/projections"
	"anneal/workers/protocol"
)

// observations turns what heartbeats report into commands: replicas become ready or fail, addons
// and weights are loaded, and attempts are lost.
type observations struct {
	recorder
	beginWithin time.Duration
	progress    *serviceProgress
	logger      *slog.Logger
}

func (o *observations) record(
	ctx context.Context, node string, session *nodeSession, heartbeat protocol.Heartbeat,
) error {
	if err := o.recordAddons(ctx, node, heartbeat, o.world.View()); err != nil {
		return err
	}
	if err := o.recordWeights(ctx, node, heartbeat, o.world.View()); err != nil {
		return err
	}
	view := o.world.View()
	if err := o.recordReplicas(ctx, node, heartbeat, view); err != nil {
		return err
	}
	if err := o.removeMissingReplicas(ctx, node, session, heartbeat, view); err != nil {
		return err
	}
	return o.recordAttempts(ctx, node, session, heartbeat, view)
}

func (o *observations) recordReplicas(
	ctx context.Context, node string, heartbeat protocol.Heartbeat, view *projections.View,
) error {
	for _, r := range heartbeat.Replicas {
		if !hasReplica(view, nodeName(node), r) {
			continue
		}
		if r.State == domain.ReplicaReady && !hasAddons(view, r) {
			r.State = domain.ReplicaInitializing
		}
		var command domain.Command[domain.Deployment]
		switch r.State {
		case domain.ReplicaInitializing, domain.ReplicaReady:
			command = domain.AdvanceReplica{ID: r.Replica, State: r.State, Node: nodeName(node)}
		case protocol.ReplicaFailed:
			o.logger.Warn("replica failed", "replica", r.ID(), "node", node, "reason", r.Reason)
			command = domain.RemoveReplica{ID: r.Replica, Reason: truncate(r.Reason), Failed: !r.Preempted}
		default:
			continue
		}
		err := o.do(ctx, node, domain.Intend(domain.Deployments, r.Deployment, command))
		if err != nil && !isRefused(err) {
			return err
		}
	}
	return nil
}

// removeMissingReplicas removes the node's replicas that were loading or ready but are not in the
// heartbeat: they were lost when the agent restarted. When a replica was loading, that counts as a
// failure, because its model may have crashed the agent; see firstBoot for an exception.
func (o *observations) removeMissingReplicas(
	ctx context.Context, node string, session *nodeSession, heartbeat protocol.Heartbeat, view *projections.View,
) error {
	listed := map[string]bool{}
	for _, r := range heartbeat.Replicas {
		if hasReplica(view, nodeName(node), r) {
			listed[r.ID()] = true
		}
	}
	for _, allocation := range allocations(view, node) {
		r, exists := replicaOf(view, nodeName(node), allocation)
		if !exists || listed[allocation.ID] || r.State == domain.ReplicaDownloading {
			continue
		}
		err := o.do(ctx, node, domain.Intend(domain.Deployments, allocation.For, domain.RemoveReplica{
			ID: r.ID, Reason: "the agent on " + describeNode(node) + " was restarted",
			Failed: r.State == domain.ReplicaInitializing && !session.firstBoot()}))
		if err != nil && !isRefused(err) {
			return err
		}
	}
	return nil
}

func (o *observations) recordAttempts(
	ctx context.Context, node string, session *nodeSession, heartbeat protocol.Heartbeat, view *projections.View,
) error {
	phases := map[string]string{} // by attempt ID: phase in the heartbeat
	for _, a := range heartbeat.Attempts {
		if j, ok := jobNamed(view, a.Job); ok && j.CreateTime.Equal(a.CreateTime) {
			phases[a.ID()] = a.Phase
		}
	}
	for _, allocation := range allocations(view, node) {
		j, ok := jobNamed(view, allocation.For)
		if !ok || !runsOn(view, j, nodeName(node), allocation.Attempt) {
			continue
		}
		id := domain.AllocationID(j.Name, j.Life.Attempt)
		phase, listed := phases[id]
		boot := session.started[id]
		var command domain.Command[domain.JobLife]
		switch lost := phase == protocol.Lost || !listed && boot != "" && boot != heartbeat.Boot; {
		case j.Life.State == domain.JobCancellingState && j.Life.Nodes[0] != nodeName(node):
			continue // the leader of the gang confirms that the attempt has stopped
		case j.Life.State == domain.JobCancellingState && (lost || !listed):
			command = domain.ConfirmCancel{Attempt: j.Life.Attempt}
		case lost:
			command = domain.RequeueJob{Attempt: j.Life.Attempt, Orphan: session.firstBoot(),
				Preempted: j.Service && o.progress.made(view, j),
				Reason:    "the agent on " + describeNode(node) + " was restarted"}
		case !listed && j.Life.StartTime != nil && o.now().Sub(*j.Life.StartTime) > o.beginWithin:
			command = domain.RequeueJob{Attempt: j.Life.Attempt,
				Reason: fmt.Sprintf("%s did not start the attempt within %s", describeNode(node), o.beginWithin)}
		default:
			continue
		}
		delete(session.started, id)
		if err := o.doJob(ctx, node, j, command); err != nil && !isRefused(err) {
			return err
		}
	}
	return nil
}
