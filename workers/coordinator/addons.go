package coordinator

import (
	"context"
	"errors"

	"anneal/domain"
	"anneal/projections"
	"anneal/workers/protocol"
)

type addonRow = projections.Row[domain.DeployedModel]

// addonsOf returns the deployed models (addons) of a deployment, the oldest first. It leaves out
// those of an earlier deployment with the same name.
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

// assignAddons adds to the draft d the addons that replica r should load and keep.
func (a *assigner) assignAddons(
	ctx context.Context, node string, view *projections.View, r protocol.Replica, d *draft,
) {
	listed := map[string]bool{}
	for _, addon := range r.Addons {
		listed[addon.ID] = true
	}
	addons := protocol.ReplicaAddons{Replica: r.ID()}
	full := false // the reply has no space for more addons
	for _, row := range addonsOf(view, r.Deployment) {
		switch id := addonID(row); {
		case !row.State.Wanted():
		case listed[id]:
			addons.Keep = append(addons.Keep, id)
		case !full:
			assignment, err := a.addonAssignment(ctx, view, row)
			if err == nil {
				err = d.reserve(assignment)
			}
			switch {
			case err == nil:
				addons.Load = append(addons.Load, assignment)
			case isRefused(err):
				a.failAddon(ctx, node, row, domain.StatusOf(err))
			case errors.Is(err, errMessageFull):
				full = true
			default:
				a.logger.Info("cannot assign an addon to a replica yet: trying again at the next "+
					"heartbeat", "addon", row.Name, "error", err)
			}
		}
	}
	a.assignWeights(ctx, view, r.Deployment, listed, &addons, d)
	if len(addons.Keep)+len(addons.Load) > 0 {
		d.Addons = append(d.Addons, addons)
	}
}

func (a *assigner) addonAssignment(
	ctx context.Context, view *projections.View, row *addonRow,
) (protocol.AddonAssignment, error) {
	model, err := readyModel(view, domain.Name(row.State.Model))
	if err != nil {
		return protocol.AddonAssignment{}, err
	}
	if model.State.Kind != domain.PEFTAddon || model.CreateTime.After(row.CreateTime) {
		return protocol.AddonAssignment{}, domain.Errorf(domain.FailedPrecondition,
			"model %s was replaced after the addon was loaded: load the addon again", model.Name)
	}
	files, err := a.fileSet(ctx, fileSetKey(model.State.Files.Prefix, model.CreateTime), model.State.Files)
	if err != nil {
		return protocol.AddonAssignment{}, err
	}
	return protocol.AddonAssignment{ID: addonID(row), Files: *files,
		Proven: row.State.State == domain.ModelDeployedState}, nil
}

func (a *assigner) failAddon(ctx context.Context, node string, row *addonRow, status domain.Status) {
	err := a.do(ctx, node, domain.Intend(domain.DeployedModels, row.Name, domain.FailDeployedModel{Status: status}))
	if err != nil {
		a.logger.Info("cannot record that an addon failed: trying again at the next "+
			"heartbeat", "addon", row.Name, "error", err)
	}
}

// hasAddons reports whether a replica has loaded all addons of its deployment, according to its
// heartbeat. A replica that lacks an addon does not become ready, so that every ready replica can
// serve every addon.
func hasAddons(view *projections.View, r protocol.Replica) bool {
	states := map[string]string{}
	for _, addon := range r.Addons {
		states[addon.ID] = addon.State
	}
	for _, row := range addonsOf(view, r.Deployment) {
		if row.State.Wanted() && states[addonID(row)] != protocol.AddonLoaded {
			return false
		}
	}
	served := hotLoad(view, r.Deployment).Served
	return served == nil || states[served.ID()] == protocol.AddonLoaded
}

// recordAddons records changes of the addons' states from a heartbeat. An addon is deployed when
// every ready replica has loaded it, undeployed when no replica has it, and failed when a replica
// cannot load it. However, when a replica that is not ready yet cannot load an addon that others
// serve, the replica fails instead of the addon.
func (o *observations) recordAddons(
	ctx context.Context, node string, heartbeat protocol.Heartbeat, view *projections.View,
) error {
	for _, r := range heartbeat.Replicas {
		if !hasReplica(view, nodeName(node), r) {
			continue
		}
		failures := map[string]string{} // by addon ID: why the replica could not load it
		for _, addon := range r.Addons {
			if addon.State == protocol.AddonFailed {
				failures[addon.ID] = truncate(addon.Reason)
			}
		}
		deployment, _ := view.Deployments.Get(r.Deployment)
		for _, row := range addonsOf(view, r.Deployment) {
			intent, ok := addonIntent(view, deployment, r, row, failures)
			if !ok {
				continue
			}
			if err := o.do(ctx, node, intent); err != nil && !isRefused(err) {
				return err
			}
		}
	}
	return nil
}

// addonIntent returns the intent that records what replica r reports about an addon; false when
// there is nothing to record.
func addonIntent(
	view *projections.View, deployment *projections.Row[domain.Deployment], r protocol.Replica,
	row *addonRow, failures map[string]string,
) (domain.Intent, bool) {
	id := addonID(row)
	reason, failed := failures[id]
	if !failed && row.State.State == domain.ModelDeployedState {
		return domain.Intent{}, false
	}
	serving, missing, holding := countReplicas(view, deployment, id)
	ready := deployment.State.Replicas[r.Replica].State == domain.ReplicaReady
	onAddon := func(command domain.Command[domain.DeployedModel]) (domain.Intent, bool) {
		return domain.Intend(domain.DeployedModels, row.Name, command), true
	}
	switch {
	case failed && row.State.Wanted() && serving > 0 && !ready:
		return domain.Intend(domain.Deployments, deployment.Name, domain.RemoveReplica{ID: r.Replica, Failed: true,
			Reason: truncate("addon " + row.State.Model + ", which other replicas serve, could not be loaded: " +
				reason)}), true
	case failed && row.State.Wanted():
		return onAddon(domain.FailDeployedModel{Status: domain.Status{Code: domain.FailedPrecondition.String(),
			Message: truncate("a replica could not load the addon: " + reason)}})
	case row.State.State == domain.ModelDeployingState && serving > 0 && missing == 0:
		return onAddon(domain.MarkModelDeployed{})
	case row.State.State == domain.ModelUndeployingState && holding == 0:
		return onAddon(domain.FinishUndeployment{})
	}
	return domain.Intent{}, false
}

// countReplicas counts replicas of a deployment by their latest heartbeats: the ready ones that
// have loaded an addon (serving), the ready ones that have not (missing), and all that have it in
// any state (holding). A replica without a heartbeat counts as holding.
func countReplicas(
	view *projections.View, deployment *projections.Row[domain.Deployment], id string,
) (serving, missing, holding int) {
	for _, r := range deployment.State.Replicas {
		load, reported := view.Live.Replica(deployment.Name, r.ID)
		state, listed := load.Addons[id]
		if listed || !reported {
			holding++
		}
		switch {
		case r.State != domain.ReplicaReady:
		case state == protocol.AddonLoaded:
			serving++
		default:
			missing++
		}
	}
	return serving, missing, holding
}
