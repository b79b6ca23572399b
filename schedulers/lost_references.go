package schedulers

import (
	"fmt"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/projections"
)

// A job or a deployment fails when a resource that it uses was deleted before the use was recorded,
// so that nothing runs on deleted rows, weights or code. See domain.Deletion.

// lost says which resource that a running job needs does not exist, so that the job must fail; ""
// when all exist.
func (j job) lost(v *projections.View) string {
	if !j.Life.Active() || !j.Life.Live() {
		return ""
	}
	return lostTo(j.missing(v), "then resume the job")
}

// missing returns the names of the resources that the job needs and that do not exist. The job does
// not need the deployments to which it offers weights, or the dataset from which its splits were
// derived.
func (j job) missing(v *projections.View) []domain.Name {
	spec := j.spec()
	return slices.DeleteFunc(v.Lost(j.Name, j.state), func(name domain.Name) bool {
		in := j.Life.Inputs
		if spec.From != "" && string(name) == spec.Config.BaseModel {
			return true // base model, not needed: the next train step starts from the previous one's output model
		}
		replaced := in != nil && name.Collection() == domain.Datasets.Collection && name != in.Train &&
			name != in.Evaluation
		return replaced || name.Collection() == domain.Deployments.Collection
	})
}

// unchecked returns an error for each missing resource that no error in found mentions yet.
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

// lost says which resource that a deployment needs does not exist, so that the deployment must
// fail; "" when all exist. The deployment needs its shape only until it is READY, because it has a
// copy of the shape's settings.
func (d *deployment) lost(v *projections.View) string {
	excluded := []string(nil)
	if d.State != domain.DeploymentCreatingState {
		excluded = append(excluded, domain.DeploymentShapes.Collection)
	}
	plain := *d.Deployment
	plain.Hot.Served = nil // ignore hot-loaded weights: the scheduler HotLoads withdraws those that were deleted
	return lostTo(v.Lost(d.name, plain), "then create another deployment", excluded...)
}

// lostTo returns a message about the first resource in names, the names of deleted resources, whose
// collection is not in excluded; "" if there is none. remedy says what the user can do after
// creating that resource again.
func lostTo(names []domain.Name, remedy string, excluded ...string) string {
	for _, name := range names {
		if !slices.Contains(excluded, name.Collection()) {
			return fmt.Sprintf("%s was deleted while this resource was being created or started: create %s again, %s", name,
				name, remedy)
		}
	}
	return ""
}
