package schedulers

import (
	"iter"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// A job is a job of any kind as the schedulers see it.
type job struct {
	Name    domain.Name
	Life    *domain.JobLife // shared with the view: do not change
	Created time.Time
	Updated time.Time
	state   domain.Job // shared with the view: do not change
}

func jobOf(row projections.Row[domain.Job]) job {
	return job{row.Name, row.State.Life(), row.CreateTime, row.UpdateTime, row.State}
}

// jobs yields every job of every kind, in the order of kinds and then names.
func jobs(v *projections.View) iter.Seq[job] {
	return func(yield func(job) bool) {
		for row := range v.Jobs() {
			if !yield(jobOf(row)) {
				return
			}
		}
	}
}

// jobNamed returns the job of a name; false when there is none.
func jobNamed(v *projections.View, name domain.Name) (job, bool) {
	row, ok := v.Job(name)
	if !ok {
		return job{}, false
	}
	return jobOf(row), true
}

func (j job) spec() domain.JobSpec { return j.state.Spec() }

// check validates what the job names.
func (j job) check(v *projections.View) validation {
	c, spec := j.inputs(v), j.spec()
	train, evaluation := j.data(v, spec.Dataset, spec.EvaluationDataset)
	if spec.StepDataset != "" && spec.StepDataset != spec.Dataset {
		train = spec.StepDataset
	}
	shapes := spec.Shapes
	if train != "" || !spec.Waits { // a job that waits gets its datasets with its steps
		dataset := c.dataset("dataset", train, spec.MinRows, shapes...)
		switch {
		case len(shapes) == 1: // the evaluation dataset does not depend on the other
		case dataset == nil:
			evaluation = ""
		default:
			shapes = []string{dataset.Shape}
		}
	}
	if spec.Evaluator != "" {
		c.evaluator("evaluator", spec.Evaluator, j.Life.EvaluatorRevision)
	}
	if evaluation != "" {
		c.dataset("evaluationDataset", evaluation, 1, shapes...)
	}
	if spec.From != "" {
		c.model("the model of the step before", string(spec.From))
		spec.Config.BaseModel, spec.Config.WarmStartFrom = "", ""
	}
	if !spec.Awaits() {
		c.models(spec.ConfigField, spec.Config, j)
	}
	return c.validation
}
