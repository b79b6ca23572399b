package coordinator

import (
	"context"
	"time"

	"anneal/domain"
	"anneal/projections"
	"anneal/workers/protocol"
)

// hotLoadGrace is how long replaced weights stay loaded. A gateway that does not know the new
// weights yet may send requests to them for that time.
const hotLoadGrace = 5 * time.Second

// hotLoad returns the hot-load state of a deployment; the zero value when the deployment does not
// exist.
func hotLoad(v *projections.View, deployment domain.Name) domain.HotLoad {
	row, ok := v.Deployments.Get(deployment)
	if !ok {
		return domain.HotLoad{}
	}
	return row.State.Hot
}

// assignWeights adds the hot-loaded weights of a deployment to the addons of a replica: those that
// are served, and those that were offered to replace them.
func (a *assigner) assignWeights(
	ctx context.Context, view *projections.View, deployment domain.Name, listed map[string]bool,
	addons *protocol.ReplicaAddons, d *draft,
) {
	hot := hotLoad(view, deployment)
	for _, weights := range []*domain.HotWeights{hot.Served, hot.Offered} {
		if weights == nil {
			continue
		}
		id := weights.ID()
		if listed[id] {
			addons.Keep = append(addons.Keep, id)
			continue
		}
		files, err := a.fileSet(ctx, id, weights.Files)
		assignment := protocol.AddonAssignment{ID: id, Full: !weights.Adapter}
		if err == nil {
			assignment.Files = *files
			err = d.reserve(assignment)
		}
		if err != nil {
			a.logger.Info("cannot assign hot-loaded weights to a replica yet: trying again at the next heartbeat",
				"deployment", deployment, "weights", id, "error", err)
			continue
		}
		addons.Load = append(addons.Load, assignment)
	}
	if listed[hot.Previous] && a.now().Sub(hot.Time) < hotLoadGrace {
		addons.Keep = append(addons.Keep, hot.Previous)
	}
}

// recordWeights records changes of hot-loaded weights from a heartbeat. Offered weights are served
// when every ready replica has loaded them, and refused when a replica cannot load them. When a
// replica that is not ready yet cannot load the weights that others serve, the replica fails.
func (o *observations) recordWeights(
	ctx context.Context, node string, heartbeat protocol.Heartbeat, view *projections.View,
) error {
	for _, r := range heartbeat.Replicas {
		if !hasReplica(view, nodeName(node), r) {
			continue
		}
		deployment, _ := view.Deployments.Get(r.Deployment)
		command := weightsCommand(view, deployment, r)
		if command == nil {
			continue
		}
		err := o.do(ctx, node, domain.Intend(domain.Deployments, deployment.Name, command))
		if err != nil && !isRefused(err) {
			return err
		}
	}
	return nil
}

// weightsCommand returns the command that records what replica r reports about hot-loaded weights;
// nil when there is nothing to record.
func weightsCommand(
	view *projections.View, deployment *projections.Row[domain.Deployment], r protocol.Replica,
) domain.Command[domain.Deployment] {
	hot := deployment.State.Hot
	ready := deployment.State.Replicas[r.Replica].State == domain.ReplicaReady
	for _, addon := range r.Addons {
		switch {
		case addon.State != protocol.AddonFailed:
		case hot.Offered != nil && addon.ID == hot.Offered.ID():
			return domain.RefuseWeights{HotWeights: *hot.Offered, Status: domain.Status{
				Code: domain.FailedPrecondition.String(), Message: truncate("a replica could not load the weights: " +
					addon.Reason)}}
		case hot.Served != nil && addon.ID == hot.Served.ID() && !ready:
			return domain.RemoveReplica{ID: r.Replica, Failed: true, Reason: truncate("the weights of " +
				string(hot.Served.Job) + ", which other replicas serve, could not be loaded: " + addon.Reason)}
		}
	}
	if hot.Offered == nil {
		return nil
	}
	var loaded []string
	count := 0
	for _, one := range deployment.State.Ordered() {
		if one.State != domain.ReplicaReady {
			continue
		}
		count++
		load, _ := view.Live.Replica(deployment.Name, one.ID)
		if load.Addons[hot.Offered.ID()] == protocol.AddonLoaded {
			loaded = append(loaded, one.ID)
		}
	}
	if count == 0 || len(loaded) < count {
		return nil
	}
	return domain.SwapWeights{ID: hot.Offered.ID(), Replicas: loaded}
}
