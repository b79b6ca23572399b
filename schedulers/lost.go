package schedulers

import (
	"slices"
	"strings"

	"anneal/domain"
	"anneal/projections"
)

// A use that lost the race against a delete fails: the delete was decided
// before the use was recorded. What such work would run on is gone, or will
// be. See domain.Deletion.

// lost is why a job that is at work must not go on; "" when it may.
func (j job) lost(v *projections.View) string {
	if !j.Life.Active() || !j.Life.Live() {
		return ""
	}
	return lostTo(j.missing(v), "then resume the job")
}

// missing is what the job works with and is not there. Weights that it has for
// deployments that are gone are its own, and rows that others were made of are
// no longer needed.
func (j job) missing(v *projections.View) []domain.Name {
	spec := j.spec()
	return slices.DeleteFunc(v.Lost(j.Name, j.state), func(name domain.Name) bool {
		in := j.Life.Inputs
		if spec.From != "" && string(name) == spec.Config.BaseModel {
			return true // the next step begins with the model of the one before
		}
		replaced := in != nil && name.Collection() == domain.Datasets.Collection && name != in.Train && name != in.Evaluation
		return replaced || name.Collection() == domain.Deployments.Collection
	})
}

// unchecked tells of what is missing and is not among the faults that were
// found.
func (j job) unchecked(v *projections.View, found []*domain.Error) (more []*domain.Error) {
	for _, name := range j.missing(v) {
		told := slices.ContainsFunc(found, func(f *domain.Error) bool { return strings.Contains(f.Message, string(name)) })
		if !told {
			more = append(more, domain.Errorf(domain.NotFound, "there is no %s: create it, then resume the job", name))
		}
	}
	return more
}

// lost is why a deployment must not go on; "" when it may. Its shape matters
// only until it is READY, since its settings are its own.
func (d *deployment) lost(v *projections.View) string {
	but := []string(nil)
	if d.State != domain.DeploymentCreatingState {
		but = append(but, domain.DeploymentShapes.Collection)
	}
	plain := *d.Deployment
	plain.Hot.Served = nil // HotLoads withdraws weights that are gone
	return lostTo(v.Lost(d.name, plain), "or create another deployment", but...)
}

// lostTo tells of the first of the names that is not of the collections left
// out.
func lostTo(names []domain.Name, wayOut string, but ...string) string {
	for _, name := range names {
		if !slices.Contains(but, name.Collection()) {
			return string(name) + " was deleted at the same time as its use began: create it again, " + wayOut
		}
	}
	return ""
}
