package coordinator

import (
	"context"

	"anneal/domain"
	"anneal/projections"
	"anneal/workers/protocol"
)

type addonRow = projections.Row[domain.DeployedModel]

// addonsOf are the deployed models of a deployment, the oldest first; those of
// one that had its name before are not among them.
func addonsOf(v *projections.View, name domain.Name) (all []*addonRow) {
	deployment, ok := v.Deployments.Get(name)
	if !ok {
		return nil
	}
	for row := range v.DeployedModels.Oldest(name.Account()) {
		if row.State.Deployment == string(name) && !row.CreateTime.Before(deployment.CreateTime) {
			all = append(all, row)
		}
	}
	return all
}

func addonID(row *addonRow) string { return domain.AddonID(row.Name, row.CreateTime) }

// equip adds what a replica of the beat is to do about addons.
func (d *Coordinator) equip(ctx context.Context, node string, view *projections.View, r protocol.Replica, orders *draft) {
	listed := map[string]bool{}
	for _, a := range r.Addons {
		listed[a.ID] = true
	}
	equipment := protocol.ReplicaAddons{Replica: r.ID()}
	for _, row := range addonsOf(view, r.Deployment) {
		switch id := addonID(row); {
		case !row.State.Wanted():
		case listed[id]:
			equipment.Keep = append(equipment.Keep, id)
		default:
			order, err := d.loadAddon(ctx, view, row)
			if err == nil {
				err = orders.fit(order)
			}
			switch {
			case err == nil:
				equipment.Load = append(equipment.Load, order)
			case isFault(err):
				d.failAddon(ctx, node, row, domain.StatusOf(err))
			default:
				d.log.Info("an addon waits for the next beat", "addon", row.Name, "error", err)
			}
		}
	}
	d.equipHot(ctx, view, r.Deployment, listed, &equipment, orders)
	if len(equipment.Keep)+len(equipment.Load) > 0 {
		orders.Addons = append(orders.Addons, equipment)
	}
}

func (d *Coordinator) loadAddon(ctx context.Context, view *projections.View, row *addonRow) (protocol.AddonAssignment, error) {
	model, err := ready(view, domain.Name(row.State.Model))
	if err != nil {
		return protocol.AddonAssignment{}, err
	}
	if model.State.Kind != domain.PEFTAddon || model.CreateTime.After(row.CreateTime) {
		return protocol.AddonAssignment{}, domain.Errorf(domain.FailedPrecondition, "%s is not the addon any more that it was: load it anew", model.Name)
	}
	folder, err := d.folder(ctx, keyOf(model.State.Files.Folder, model.CreateTime), model.State.Files)
	if err != nil {
		return protocol.AddonAssignment{}, err
	}
	return protocol.AddonAssignment{ID: addonID(row), Files: *folder}, nil
}

func (d *Coordinator) failAddon(ctx context.Context, node string, row *addonRow, status domain.Status) {
	if err := d.do(ctx, node, domain.Intend(domain.DeployedModels, row.Name, domain.FailDeployedModel{Status: status})); err != nil {
		d.log.Info("the failure of an addon is not recorded", "addon", row.Name, "error", err)
	}
}

// equipped tells whether a replica of a beat has all addons that it should
// have: before, it is not ready, so that whoever asks a ready replica for an
// addon finds it there.
func equipped(view *projections.View, r protocol.Replica) bool {
	states := map[string]string{}
	for _, a := range r.Addons {
		states[a.ID] = a.State
	}
	for _, row := range addonsOf(view, r.Deployment) {
		if row.State.Wanted() && states[addonID(row)] != protocol.AddonLoaded {
			return false
		}
	}
	served := hotLoad(view, r.Deployment).Served
	return served == nil || states[served.ID()] == protocol.AddonLoaded
}

// settleAddons turns what a beat says of addons into facts: they are deployed
// when every ready replica has them, undeployed when none has, and failed when
// one cannot load them. One that is in use elsewhere does not fail: the replica
// that cannot load it does.
func (d *Coordinator) settleAddons(ctx context.Context, node string, beat protocol.Heartbeat, view *projections.View) error {
	for _, r := range beat.Replicas {
		if !replicaOn(view, nodeName(node), r) {
			continue
		}
		failed := map[string]string{}
		for _, a := range r.Addons {
			if a.State == protocol.AddonFailed {
				failed[a.ID] = short(a.Reason)
			}
		}
		deployment, _ := view.Deployments.Get(r.Deployment)
		for _, row := range addonsOf(view, r.Deployment) {
			intent, ok := verdict(view, deployment, r, row, failed)
			if !ok {
				continue
			}
			if err := d.do(ctx, node, intent); err != nil && !isFault(err) {
				return err
			}
		}
	}
	return nil
}

// verdict is what is to be recorded of an addon, if anything.
func verdict(view *projections.View, deployment *projections.Row[domain.Deployment], r protocol.Replica, row *addonRow, failed map[string]string) (domain.Intent, bool) {
	id := addonID(row)
	have, lack, holders := spread(view, deployment, id)
	reason, broken := failed[id]
	switch {
	case broken && row.State.Wanted() && have > 0 && deployment.State.Replicas[r.Replica].State != domain.ReplicaReady:
		return domain.Intend(domain.Deployments, deployment.Name, domain.RemoveReplica{ID: r.Replica, Failed: true,
			Reason: short("the addon " + row.State.Model + ", which others have, could not be loaded: " + reason)}), true
	case broken && row.State.Wanted():
		return domain.Intend(domain.DeployedModels, row.Name, domain.FailDeployedModel{
			Status: domain.Status{Code: domain.FailedPrecondition.String(), Message: short("a replica could not load it: " + reason)}}), true
	case row.State.State == domain.ModelDeployingState && have > 0 && lack == 0:
		return domain.Intend(domain.DeployedModels, row.Name, domain.SettleDeployedModel{}), true
	case row.State.State == domain.ModelUndeployingState && holders == 0:
		return domain.Intend(domain.DeployedModels, row.Name, domain.FinishUndeployment{}), true
	}
	return domain.Intent{}, false
}

// spread counts, by what the replicas said last, the ready ones that have an
// addon and those that lack it, and all that hold it in any way; one that has
// said nothing yet holds it.
func spread(view *projections.View, deployment *projections.Row[domain.Deployment], id string) (have, lack, holders int) {
	for _, r := range deployment.State.Replicas {
		load, heard := view.Live.Replica(deployment.Name, r.ID)
		state, listed := load.Addons[id]
		if listed || !heard {
			holders++
		}
		switch {
		case r.State != domain.ReplicaReady:
		case state == protocol.AddonLoaded:
			have++
		default:
			lack++
		}
	}
	return have, lack, holders
}

// addonStates is the addons of a replica for the pulse, which keeps a limited
// number of them.
func addonStates(r protocol.Replica) map[string]string {
	states := map[string]string{}
	for _, a := range r.Addons[:min(len(r.Addons), 2*domain.MaxAddons)] {
		states[a.ID] = a.State
	}
	return states
}
