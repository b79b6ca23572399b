package projections

import "anneal/domain"

// Usage is what an account has now of what quotas count, except storage: see
// Storage.
func (v *View) Usage(account string) (sum domain.Usage) {
	for row := range v.Deployments.In(account) {
		sum = sum.Plus(row.State.Usage())
	}
	for job := range v.JobsIn(account) {
		sum = sum.Plus(job.State.Life().Usage())
	}
	return sum
}

// Storage is how many bytes the files of an account's datasets, models and
// evaluators have. It looks at each of them.
func (v *View) Storage(account string) int64 {
	var sum domain.Usage
	for row := range v.Datasets.In(account) {
		sum = sum.Plus(row.State.Usage())
	}
	for row := range v.Models.In(account) {
		sum = sum.Plus(row.State.Usage())
	}
	for row := range v.Evaluators.In(account) {
		sum = sum.Plus(row.State.Usage())
	}
	return sum.StorageBytes
}

// Quota is the most that an account may have of what a quota counts; false
// when it is unlimited.
func (v *View) Quota(account, id string) (int64, bool) {
	row, ok := v.Quotas.Get(domain.NewName(account, domain.Quotas.Collection, id))
	if !ok || row.State.MaxValue == nil {
		return 0, false
	}
	return row.State.MaxValue.Int64(), true
}
