package coordinator

import (
	"context"
	"time"

	"anneal/domain"
	"anneal/projections"
	"anneal/workers/protocol"
)

// hotGrace is how long weights stay loaded that others have taken the place of:
// requests may be on their way to them from a gateway that has not heard so.
const hotGrace = 5 * time.Second

// hotLoad is how far a deployment is with weights that are loaded hot.
func hotLoad(v *projections.View, deployment domain.Name) domain.HotLoad {
	row, ok := v.Deployments.Get(deployment)
	if !ok {
		return domain.HotLoad{}
	}
	return row.State.Hot
}

// equipHot adds what a replica is to do about weights: those that answer and
// those that are offered it should have.
func (d *Coordinator) equipHot(ctx context.Context, view *projections.View, deployment domain.Name, listed map[string]bool, equipment *protocol.ReplicaAddons, orders *draft) {
	hot := hotLoad(view, deployment)
	for _, weights := range []*domain.HotWeights{hot.Served, hot.Offered} {
		if weights == nil {
			continue
		}
		id := weights.ID()
		if listed[id] {
			equipment.Keep = append(equipment.Keep, id)
			continue
		}
		folder, err := d.folder(ctx, id, weights.Files)
		order := protocol.AddonAssignment{ID: id, Full: !weights.Adapter}
		if err == nil {
			order.Files = *folder
			err = orders.fit(order)
		}
		if err != nil {
			d.log.Info("weights wait for the next beat", "deployment", deployment, "weights", id, "error", err)
			continue
		}
		equipment.Load = append(equipment.Load, order)
	}
	if listed[hot.Former] && d.Now().Sub(hot.Time) < hotGrace {
		equipment.Keep = append(equipment.Keep, hot.Former)
	}
}

// settleHot turns what a beat says of weights into facts: they answer when every
// ready replica has them, and are refused when one cannot load them. A replica
// that is not ready yet and cannot load those that answer fails.
func (d *Coordinator) settleHot(ctx context.Context, node string, beat protocol.Heartbeat, view *projections.View) error {
	for _, r := range beat.Replicas {
		if !replicaOn(view, nodeName(node), r) {
			continue
		}
		deployment, _ := view.Deployments.Get(r.Deployment)
		intent, ok := hotVerdict(view, deployment, r)
		if !ok {
			continue
		}
		if err := d.do(ctx, node, intent); err != nil && !isFault(err) {
			return err
		}
	}
	return nil
}

// hotVerdict is what is to be recorded of weights, if anything.
func hotVerdict(view *projections.View, deployment *projections.Row[domain.Deployment], r protocol.Replica) (domain.Intent, bool) {
	hot := deployment.State.Hot
	on := func(command domain.Command[domain.Deployment]) (domain.Intent, bool) {
		return domain.Intend(domain.Deployments, deployment.Name, command), true
	}
	for _, a := range r.Addons {
		switch {
		case a.State != protocol.AddonFailed:
		case hot.Offered != nil && a.ID == hot.Offered.ID():
			return on(domain.RefuseWeights{HotWeights: *hot.Offered, Status: domain.Status{Code: domain.FailedPrecondition.String(),
				Message: short("a replica could not load it: " + a.Reason)}})
		case hot.Served != nil && a.ID == hot.Served.ID() && deployment.State.Replicas[r.Replica].State != domain.ReplicaReady:
			return on(domain.RemoveReplica{ID: r.Replica, Failed: true, Reason: short("the weights of " + string(hot.Served.Job) + ", which others have, could not be loaded: " + a.Reason)})
		}
	}
	if hot.Offered == nil {
		return domain.Intent{}, false
	}
	var have []string
	ready := 0
	for _, one := range deployment.State.Ordered() {
		if one.State != domain.ReplicaReady {
			continue
		}
		ready++
		if load, _ := view.Live.Replica(deployment.Name, one.ID); load.Addons[hot.Offered.ID()] == protocol.AddonLoaded {
			have = append(have, one.ID)
		}
	}
	if ready == 0 || len(have) < ready {
		return domain.Intent{}, false
	}
	return on(domain.SwapWeights{ID: hot.Offered.ID(), Replicas: have})
}
