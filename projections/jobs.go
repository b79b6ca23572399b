package projections

import (
	"iter"

	"anneal/domain"
)

// Jobs yields the jobs of all kinds, ordered by kind and name. The caller must not change their
// states, which the view shares.
func (v *View) Jobs() iter.Seq[Row[domain.Job]] {
	return v.jobs(func(t *table) iter.Seq[domain.AnyRow] { return t.all() })
}

// JobsIn yields an account's jobs of all kinds, ordered by kind and name.
func (v *View) JobsIn(account string) iter.Seq[Row[domain.Job]] {
	return v.jobs(func(t *table) iter.Seq[domain.AnyRow] { return t.in(account) })
}

// UnfinishedJobs yields the unfinished jobs of all kinds (see domain.JobLife.Unfinished), ordered
// by kind and name, in a time that does not depend on the number of ended jobs. The caller must not
// change the states.
func UnfinishedJobs(v *View) iter.Seq[Row[domain.Job]] {
	return v.jobs(func(t *table) iter.Seq[domain.AnyRow] { return t.unfinished(everyAccount) })
}

// UnfinishedJobsIn is UnfinishedJobs for the jobs of one account.
func UnfinishedJobsIn(v *View, account string) iter.Seq[Row[domain.Job]] {
	return v.jobs(func(t *table) iter.Seq[domain.AnyRow] { return t.unfinished(account) })
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

// Job returns the row of the named job. The result is false when there is no such job.
func (v *View) Job(name domain.Name) (Row[domain.Job], bool) {
	t := v.tables[name.Collection()]
	if t == nil {
		return Row[domain.Job]{}, false
	}
	row, ok := t.row(name)
	if !ok {
		return Row[domain.Job]{}, false
	}
	return JobOf(row)
}

// JobOf returns row as the row of a job. The result is false when row is that of another kind of
// resource.
func JobOf(row domain.AnyRow) (Row[domain.Job], bool) {
	job, ok := row.Pointer().(domain.Job)
	return domain.WithState(row.Head(), job), ok
}
