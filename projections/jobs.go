package projections

import (
	"iter"

	"anneal/domain"
)

// Jobs yields the jobs of every kind, in the order of kinds and then names. Their states are the
// view's: do not change them.
func (v *View) Jobs() iter.Seq[Row[domain.Job]] {
	return v.jobs(func(t *table) iter.Seq[domain.AnyRow] { return t.all() })
}

// JobsIn yields the jobs of an account.
func (v *View) JobsIn(account string) iter.Seq[Row[domain.Job]] {
	return v.jobs(func(t *table) iter.Seq[domain.AnyRow] { return t.in(account) })
}

func (v *View) jobs(rows func(*table) iter.Seq[domain.AnyRow]) iter.Seq[Row[domain.Job]] {
	return func(yield func(Row[domain.Job]) bool) {
		for kind := range domain.JobKinds() {
			for row := range rows(v.tables[kind.CollectionID()]) {
				if job, _ := JobOf(row); !yield(job) {
					return
				}
			}
		}
	}
}

// Job returns the job of a name; false when there is none.
func (v *View) Job(name domain.Name) (Row[domain.Job], bool) {
	t := v.tables[name.Collection()]
	if t == nil {
		return Row[domain.Job]{}, false
	}
	one, ok := t.rows.Get(name)
	if !ok {
		return Row[domain.Job]{}, false
	}
	return JobOf(one.row)
}

// JobOf returns a row as that of a job; false when its kind is none of jobs.
func JobOf(row domain.AnyRow) (Row[domain.Job], bool) {
	job, ok := row.Pointer().(domain.Job)
	return domain.WithState(row.Head(), job), ok
}
