package projections

import (
	"cmp"
	"iter"
	"strings"

	"anneal/domain"
)

// Addons yields the deployed models of a deployment from the oldest to the newest. Those of an
// earlier deployment with the same name are included until they are removed.
func (v *View) Addons(deployment domain.Name) iter.Seq[*Row[domain.DeployedModel]] {
	return func(yield func(*Row[domain.DeployedModel]) bool) {
		for row := range v.DeployedModels.Oldest(deployment.Account()) {
			if row.State.Deployment == string(deployment) && !yield(row) {
				return
			}
		}
	}
}

// IsDefault reports whether a deployed model is the default addon of its deployment, which has at
// most one. The row can be newer than the view, such as the result of a command.
func (v *View) IsDefault(row *Row[domain.DeployedModel]) bool {
	return row.State.Default && !v.LostDefault(row)
}

// LostDefault reports whether the state of a deployed model says that it is the default addon,
// although another deployed model of the deployment has become the default since.
func (v *View) LostDefault(row *Row[domain.DeployedModel]) bool {
	if !row.State.Default {
		return false
	}
	older := true // Addons yields older addons first: those before the row are older than the row
	for other := range v.Addons(domain.Name(row.State.Deployment)) {
		if other.Name == row.Name {
			older = false
			continue
		}
		if other.State.TakesDefault(row.State, older) {
			return true
		}
	}
	return false
}

// NextDefaultRank returns a rank above those of all addons of a deployment. The addon with the
// highest rank is the default.
func (v *View) NextDefaultRank(deployment domain.Name) int {
	rank := 0
	for row := range v.Addons(deployment) {
		rank = max(rank, row.State.DefaultRank)
	}
	return rank + 1
}

// AddonSlots returns how many addons a replica of a deployment may have loaded in its engine at a
// time: as many as the deployment's shape version says, or else domain.DefaultAddonSlots.
func AddonSlots(v *View, d *domain.Deployment) int {
	shape, id, _ := strings.Cut(d.DeploymentShape, "/versions/")
	row, ok := v.Shapes.Get(domain.Name(shape))
	if !ok {
		return domain.DefaultAddonSlots
	}
	version, ok := row.State.Version(id)
	if !ok {
		return domain.DefaultAddonSlots
	}
	return cmp.Or(version.NumLoraDeviceCached, domain.DefaultAddonSlots)
}
