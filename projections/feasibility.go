package projections

import (
	"slices"

	"anneal/domain"
)

// fleetOf returns the fleet of all nodes in a table.
func fleetOf(nodes *Table[domain.Node]) domain.Fleet {
	return domain.FleetOf(func(yield func(domain.Name, domain.Node) bool) {
		for row := range nodes.All() {
			if !yield(row.Name, row.State) {
				return
			}
		}
	})
}

// Fleet returns the fleet of all nodes. The view computes it only once.
func (v *View) Fleet() domain.Fleet { return v.fleet() }

// Located reports whether at least one node has a region: see domain.AnyRegion.
func (v *View) Located() bool { return v.Fleet().Located }

// EngineNames returns the names of the engines (see domain.Node.EngineNames) of all registered
// nodes that are neither lost nor revoked.
func EngineNames(v *View) (names []string) {
	for row := range v.Nodes.All() {
		if row.State.Registered() && !row.State.Absent() {
			names = append(names, row.State.EngineNames()...)
		}
	}
	return names
}

// EngineNamesOf returns the names of the engines (see domain.Node.EngineNames) of the nodes on
// which replicas of a deployment run.
func EngineNamesOf(v *View, d *domain.Deployment) (names []string) {
	for _, replica := range d.Replicas {
		if node, ok := v.Nodes.Get(replica.Node); ok {
			names = append(names, node.State.EngineNames()...)
		}
	}
	return names
}

// Feasibility returns whether the nodes of the view can meet a need. Its reasons do not name nodes,
// because users read them, and only the operator may know the nodes' names.
func (v *View) Feasibility(need domain.Need) domain.Feasibility {
	return domain.FeasibilityOf(need, v.Fleet()).WithoutNodeNames()
}

// ForAccount returns the need with the node policy of the account that owns the replica or the job.
func ForAccount(v *View, account string, need domain.Need) domain.Need {
	if row, ok := v.Accounts.Get(domain.NewName(account, domain.Accounts.Collection, account)); ok {
		need.Policy = row.State.Nodes
	}
	return need
}

// Alive returns the replicas of a deployment, ordered by number, without those on nodes that are
// lost or revoked, which the scheduler will remove.
func (v *View) Alive(d *domain.Deployment) []domain.Replica {
	return slices.DeleteFunc(d.Ordered(), func(r domain.Replica) bool {
		node, known := v.Nodes.Get(r.Node)
		return known && node.State.Absent()
	})
}

// NeedOf returns what one replica of a deployment requires of the fleet. It is too low if the view
// does not have the deployment's models.
func (v *View) NeedOf(d *domain.Deployment) domain.Need { return d.Need(HostedBy(v, d)) }

// HostedBy returns the model of a deployment as its replicas load it, with the draft model. Fields
// are 0 for models that the view does not have.
func HostedBy(v *View, d *domain.Deployment) (hosted domain.Hosted) {
	row, ok := v.Models.Get(domain.Name(d.BaseModel))
	switch {
	case !ok:
	case row.State.Kind != domain.PEFTAddon:
		hosted = row.State.Hosted(d.ServedPrecision())
	default:
		if base, ok := v.Models.Get(domain.Name(row.State.BaseModel)); ok {
			hosted = base.State.Hosted("").Merged()
		}
	}
	if drafter := d.ServedDrafter(); drafter != "" {
		if row, ok := v.Models.Get(domain.Name(drafter)); ok {
			draft := row.State.Hosted("")
			hosted.Draft = &draft
		}
	}
	return hosted
}

// NeedOfJob returns what one attempt of an account's job requires of the fleet. It is too low if
// the view does not have the model that the job trains.
func (v *View) NeedOfJob(account string, spec domain.JobSpec) domain.Need {
	return v.NeedOfJobOn(account, spec, domain.FleetAccelerator(v.Fleet(), ForAccount(v, account, spec.Need())))
}

// NeedOfJobOn is like NeedOfJob, but does not call domain.FleetAccelerator: accelerator is its
// result, which a caller can reuse for many jobs.
func (v *View) NeedOfJobOn(account string, spec domain.JobSpec, accelerator string) domain.Need {
	row, ok := v.Models.Get(spec.Model())
	if ok && row.State.Kind == domain.PEFTAddon {
		row, ok = v.Models.Get(domain.Name(row.State.BaseModel))
	}
	var size domain.ModelSize
	if ok {
		size = row.State.Size()
	}
	return ForAccount(v, account, spec.NeedOn(size, accelerator, JobAcceleratorsOf(v, account)))
}

// JobAcceleratorsOf returns the operator's table of the accelerators of an account's jobs: that of the
// account or, if it has none, that of all accounts.
func JobAcceleratorsOf(v *View, account string) domain.JobAccelerators {
	for _, id := range []string{account, domain.System} {
		name := domain.NewName("", domain.Accounts.Collection, id)
		if row, ok := v.Accounts.Get(name); ok && len(row.State.JobAccelerators) > 0 {
			return row.State.JobAccelerators
		}
	}
	return nil
}
