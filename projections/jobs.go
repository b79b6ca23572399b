package projections

import (
	"iter"

	"anneal/domain"
)

// JobShown says how a job of each kind is shown as a J. A new kind of job joins
// here: whoever shows jobs must then say how it is shown.
type JobShown[J any] struct {
	Supervised    func(*Row[domain.SupervisedJob]) J
	Preference    func(*Row[domain.DPOJob]) J
	Reinforcement func(*Row[domain.ReinforcementJob]) J
	Trainer       func(*Row[domain.TrainerJob]) J
}

// All yields every job of every kind, in the order of kinds and then names.
func (s JobShown[J]) All(v *View) iter.Seq[J] {
	return func(yield func(J) bool) {
		_ = each(v.SupervisedJobs.All(), s.Supervised, yield) && each(v.DPOJobs.All(), s.Preference, yield) &&
			each(v.ReinforcementJobs.All(), s.Reinforcement, yield) && each(v.TrainerJobs.All(), s.Trainer, yield)
	}
}

// In yields the jobs of an account.
func (s JobShown[J]) In(v *View, account string) iter.Seq[J] {
	return func(yield func(J) bool) {
		_ = each(v.SupervisedJobs.In(account), s.Supervised, yield) && each(v.DPOJobs.In(account), s.Preference, yield) &&
			each(v.ReinforcementJobs.In(account), s.Reinforcement, yield) && each(v.TrainerJobs.In(account), s.Trainer, yield)
	}
}

// Named is the job of a name; false when there is none.
func (s JobShown[J]) Named(v *View, name domain.Name) (J, bool) {
	switch name.Collection() {
	case domain.SupervisedJobs.Collection:
		return jobIn(v.SupervisedJobs, s.Supervised, name)
	case domain.DPOJobs.Collection:
		return jobIn(v.DPOJobs, s.Preference, name)
	case domain.ReinforcementJobs.Collection:
		return jobIn(v.ReinforcementJobs, s.Reinforcement, name)
	case domain.TrainerJobs.Collection:
		return jobIn(v.TrainerJobs, s.Trainer, name)
	}
	var none J
	return none, false
}

// JobLives shows jobs as what all of them share. The lives are the view's: do
// not change them.
var JobLives = JobShown[*domain.JobLife]{
	Supervised:    func(row *Row[domain.SupervisedJob]) *domain.JobLife { return &row.State.JobLife },
	Preference:    func(row *Row[domain.DPOJob]) *domain.JobLife { return &row.State.JobLife },
	Reinforcement: func(row *Row[domain.ReinforcementJob]) *domain.JobLife { return &row.State.JobLife },
	Trainer:       func(row *Row[domain.TrainerJob]) *domain.JobLife { return &row.State.JobLife },
}

func each[S domain.State, J any](rows iter.Seq[*Row[S]], show func(*Row[S]) J, yield func(J) bool) bool {
	for row := range rows {
		if !yield(show(row)) {
			return false
		}
	}
	return true
}

func jobIn[S domain.State, J any](t *Table[S], show func(*Row[S]) J, name domain.Name) (J, bool) {
	if row, ok := t.Get(name); ok {
		return show(row), true
	}
	var none J
	return none, false
}
