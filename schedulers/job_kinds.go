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
	uses    domain.User
}

// jobKind is what differs from one kind of job to the other.
type jobKind interface {
	need() domain.Need
	// carve is the dataset of which rows are to be held back for evaluation, and
	// how many must remain; "" is none.
	carve() (dataset string, least domain.Count)
	// check says what is wrong with what the job names.
	check(v *projections.View, j job) verdict
}

// shown is how the schedulers see each kind of job.
var shown = projections.JobShown[job]{Supervised: supervisedJob, Preference: dpoJob, Reinforcement: reinforcementJob, Trainer: trainerJob}

// jobs yields every job of every kind, in the order of kinds and then names.
func jobs(v *projections.View) iter.Seq[job] { return shown.All(v) }

// jobNamed is the job of a name; false when there is none.
func jobNamed(v *projections.View, name domain.Name) (job, bool) { return shown.Named(v, name) }

// rows are the shapes of rows that the job takes.
func (j job) rows() []string { return domain.JobRows[j.Name.Collection()] }

func supervisedJob(row *projections.Row[domain.SupervisedJob]) job {
	return job{row.Name, &row.State.JobLife, row.CreateTime, row.UpdateTime, (*supervised)(&row.State.SupervisedSpec), &row.State}
}

type supervised domain.SupervisedSpec

func (s *supervised) need() domain.Need { return (*domain.SupervisedSpec)(s).Need() }

func (s *supervised) carve() (string, domain.Count) {
	return carved(s.EvalAutoCarveout, s.Dataset), minExamples
}

// carved is the dataset, when rows of it are to be held back.
func carved(carveout bool, dataset string) string {
	if carveout {
		return dataset
	}
	return ""
}

func (s *supervised) check(v *projections.View, j job) verdict {
	c := j.inputs(v)
	train, evaluation := j.data(v, s.Dataset, s.EvaluationDataset)
	dataset := c.dataset("dataset", train, minExamples, j.rows()...)
	if evaluation != "" && dataset != nil {
		c.dataset("evaluationDataset", evaluation, 1, dataset.Shape)
	}
	c.models("", s.TrainingConfig, j)
	return c.verdict
}

func dpoJob(row *projections.Row[domain.DPOJob]) job {
	return job{row.Name, &row.State.JobLife, row.CreateTime, row.UpdateTime, (*preference)(&row.State.DPOSpec), &row.State}
}

type preference domain.DPOSpec

func (s *preference) need() domain.Need { return (*domain.DPOSpec)(s).Need() }

func (s *preference) carve() (string, domain.Count) { return "", 0 }

func (s *preference) check(v *projections.View, j job) verdict {
	c := j.inputs(v)
	c.dataset("dataset", s.Dataset, minExamples, j.rows()...)
	c.models("trainingConfig.", s.TrainingConfig, j)
	return c.verdict
}

func reinforcementJob(row *projections.Row[domain.ReinforcementJob]) job {
	return job{row.Name, &row.State.JobLife, row.CreateTime, row.UpdateTime, (*reinforcement)(&row.State.ReinforcementSpec), &row.State}
}

type reinforcement domain.ReinforcementSpec

func (s *reinforcement) need() domain.Need { return (*domain.ReinforcementSpec)(s).Need() }

func (s *reinforcement) carve() (string, domain.Count) {
	return carved(s.EvalAutoCarveout, s.Dataset), 1
}

func (s *reinforcement) check(v *projections.View, j job) verdict {
	c := j.inputs(v)
	train, evaluation := j.data(v, s.Dataset, s.EvaluationDataset)
	c.dataset("dataset", train, 1, j.rows()...)
	c.evaluator("evaluator", s.Evaluator, j.Life.EvaluatorRevision)
	if evaluation != "" {
		c.dataset("evaluationDataset", evaluation, 1, j.rows()...)
	}
	c.models("trainingConfig.", s.TrainingConfig, j)
	return c.verdict
}

func trainerJob(row *projections.Row[domain.TrainerJob]) job {
	return job{row.Name, &row.State.JobLife, row.CreateTime, row.UpdateTime, (*trainer)(&row.State), &row.State}
}

type trainer domain.TrainerJob

func (s *trainer) need() domain.Need { return (*domain.TrainerJob)(s).Need() }

func (s *trainer) carve() (string, domain.Count) {
	return carved(s.EvalAutoCarveout, s.Dataset), 1
}

// awaits tells whether the job has nothing to do before it is given a step.
func (j job) awaits() bool {
	t, ok := j.kind.(*trainer)
	return ok && t.Waits() && !(*domain.TrainerJob)(t).HasStep()
}

func (s *trainer) check(v *projections.View, j job) verdict {
	c := j.inputs(v)
	train, evaluation := j.data(v, s.Dataset, s.EvaluationDataset)
	if s.Step.Number > 0 && s.Step.Dataset != s.Dataset {
		train = s.Step.Dataset
	}
	if train != "" { // otherwise its steps bring their own
		c.dataset("dataset", train, 1, j.rows()...)
	}
	if evaluation != "" {
		c.dataset("evaluationDataset", evaluation, 1, j.rows()...)
	}
	training := s.TrainingConfig
	if from := (*domain.TrainerJob)(s).From(); from != "" {
		c.model("the model of the step before", string(from))
		training.BaseModel, training.WarmStartFrom = "", ""
	}
	if s.Step.Number > 0 {
		training.OutputModel = s.Step.OutputModel
	}
	if !j.awaits() {
		c.models("trainingConfig.", training, j)
	}
	return c.verdict
}
