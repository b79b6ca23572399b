package schedulers

import (
	"slices"
	"strings"

	"anneal/domain"
	"anneal/projections"
)

// A use that lost the race against a delete fails: the delete was decided before the use was
// recorded, so the resources of such work are, or will be, deleted. See domain.Deletion.

// lost returns why a running job must not continue, or "".
func (j job) lost(v *projections.View) string {
	if !j.Life.Active() || !j.Life.Live() {
		return ""
	}
	return lostTo(j.missing(v), "then resume the job")
}

// missing returns the resources that the job needs and that do not exist. It does not need the
// deployments that it offers weights to, nor the dataset that its splits were created from.
func (j job) missing(v *projections.View) []domain.Name {
	spec := j.spec()
	return slices.DeleteFunc(v.Lost(j.Name, j.state), func(name domain.Name) bool {
		in := j.Life.Inputs
		if spec.From != "" && string(name) == spec.Config.BaseModel {
			return true // the next step starts from the model of the step before
		}
		replaced := in != nil && name.Collection() == domain.Datasets.Collection && name != in.Train &&
			name != in.Evaluation
		return replaced || name.Collection() == domain.Deployments.Collection
	})
}

// unchecked returns errors for the missing resources that found does not name.
func (j job) unchecked(v *projections.View, found []*domain.Error) (more []*domain.Error) {
	for _, name := range j.missing(v) {
		named := slices.ContainsFunc(found, func(f *domain.Error) bool {
			return strings.Contains(f.Message,
				string(name))
		})
		if !named {
			more = append(more, domain.Errorf(domain.NotFound, "%s does not exist: create it, then resume the job",
				name))
		}
	}
	return more
}

// lost returns why a deployment must not continue, or "". Its shape is needed only until it is READY,
// since the deployment has a copy of the settings.
func (d *deployment) lost(v *projections.View) string {
	excluded := []string(nil)
	if d.State != domain.DeploymentCreatingState {
		excluded = append(excluded, domain.DeploymentShapes.Collection)
	}
	plain := *d.Deployment
	plain.Hot.Served = nil // HotLoads withdraws deleted weights
	return lostTo(v.Lost(d.name, plain), "or create another deployment", excluded...)
}

// lostTo returns a message about the first of the names whose collection is not excluded.
func lostTo(names []domain.Name, wayOut string, excluded ...string) string {
	for _, name := range names {
		if !slices.Contains(excluded, name.Collection()) {
			return string(name) + " was deleted at the same time as its use began: create it again, " + wayOut
		}
	}
	return ""
}
