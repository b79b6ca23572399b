package schedulers

import (
	"iter"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// A job is the name and the state of a job of any kind, read from a row of the view.
type job struct {
	Name    domain.Name
	Life    *domain.JobLife // shared with the view, so it must not be changed
	Created time.Time
	Updated time.Time
	created uint64     // position of the event that created the job
	state   domain.Job // shared with the view, so it must not be changed
}

func jobOf(row projections.Row[domain.Job]) job {
	return job{Name: row.Name, Life: row.State.Life(), Created: row.CreateTime, Updated: row.UpdateTime,
		created: row.CreateVersion,
		state:   row.State}
}

// jobs yields the unfinished jobs of all kinds, ordered by kind and name.
func jobs(v *projections.View) iter.Seq[job] {
	return func(yield func(job) bool) {
		for row := range projections.UnfinishedJobs(v) {
			if !yield(jobOf(row)) {
				return
			}
		}
	}
}

// jobNamed returns the job with the given name; false when the job does not exist.
func jobNamed(v *projections.View, name domain.Name) (job, bool) {
	row, ok := v.Job(name)
	if !ok {
		return job{}, false
	}
	return jobOf(row), true
}

func (j job) spec() domain.JobSpec { return j.state.Spec() }

// check validates the resources that the job names: see inputs.
func (j job) check(v *projections.View) validation {
	c, spec := j.inputs(v), j.spec()
	train, evaluation := j.data(v, spec.Dataset, spec.EvaluationDataset)
	if spec.StepDataset != "" && spec.StepDataset != spec.Dataset {
		train = spec.StepDataset
	}
	shapes := spec.Shapes
	if train != "" || !spec.Waits { // a job with train steps may name no dataset, because each step can name its own
		dataset := c.dataset("dataset", train, spec.MinRows, shapes...)
		switch {
		// datasets for this kind of job have only one shape, so the training dataset is not needed
		// to know it
		case len(shapes) == 1:
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
		c.model("the output model of the previous step", string(spec.From))
		spec.Config.BaseModel, spec.Config.WarmStartFrom = "", ""
	}
	if !spec.AwaitsStep() {
		c.models(spec.ConfigField, spec.Config, j)
	}
	return c.validation
}
