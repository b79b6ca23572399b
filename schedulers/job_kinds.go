package schedulers

import (
	"iter"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// A job is what every kind of job shows to the schedulers.
type job struct {
	Name    domain.Name
	Life    *domain.JobLife // shared with the view: do not change
	Created time.Time
	Updated time.Time
	kind    jobKind
}

// jobKind is what differs from one kind of job to the other.
type jobKind interface {
	need() Need
	// check says what is wrong with what the job names.
	check(v *projections.View, j job) verdict
}

// jobs yields every job of every kind, in the order of kinds and then names. A
// new kind joins here, and in jobNamed.
func jobs(v *projections.View) iter.Seq[job] {
	return func(yield func(job) bool) {
		for row := range v.SupervisedJobs.All() {
			if !yield(supervisedJob(row)) {
				return
			}
		}
	}
}

// jobNamed is the job of a name; false when there is none.
func jobNamed(v *projections.View, name domain.Name) (job, bool) {
	if name.Collection() == domain.SupervisedJobs.Collection {
		if row, ok := v.SupervisedJobs.Get(name); ok {
			return supervisedJob(row), true
		}
	}
	return job{}, false
}

func supervisedJob(row *projections.Row[domain.SupervisedJob]) job {
	return job{row.Name, &row.State.JobLife, row.CreateTime, row.UpdateTime, (*supervised)(&row.State.SupervisedSpec)}
}

type supervised domain.SupervisedSpec

func (s *supervised) need() Need {
	return Need{Count: max(1, s.Nodes), Pool: domain.PoolTraining, Engine: "train", Takes: domain.Resources{CPUMilli: 1000, MemoryMiB: 512}}
}

func (s *supervised) check(v *projections.View, j job) verdict {
	c := inputs{view: v, account: j.Name.Account()}
	dataset := c.dataset("dataset", s.Dataset, minExamples, domain.ShapeChat, domain.ShapeCompletion)
	if s.EvaluationDataset != "" && dataset != nil {
		c.dataset("evaluationDataset", s.EvaluationDataset, 1, dataset.Shape)
	}
	c.base("baseModel", s.BaseModel)
	c.adapter("warmStartFrom", s.WarmStartFrom)
	c.output("outputModel", s.OutputModel, j)
	return c.verdict
}
