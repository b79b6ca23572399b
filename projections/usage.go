package projections

import "anneal/domain"

// Usage returns the account's usage that counts toward quotas, except storage, which Storage
// returns.
func (v *View) Usage(account string) (sum domain.Usage) {
	for row := range v.Deployments.In(account) {
		sum = sum.Plus(row.State.Usage())
	}
	for job := range UnfinishedJobsIn(v, account) {
		sum = sum.Plus(job.State.Life().Usage())
	}
	return sum
}

// Storage returns the bytes that the files of an account's datasets, models, evaluators and batches
// take. It iterates over all of these resources.
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
	for row := range v.BatchFiles.In(account) {
		sum = sum.Plus(row.State.Usage())
	}
	return sum.StorageBytes
}

// Quota returns the maximum that an account's quota with this ID sets. The result is false when the
// quota is not set.
func (v *View) Quota(account, id string) (int64, bool) {
	row, ok := v.Quotas.Get(domain.NewName(account, domain.Quotas.Collection, id))
	if !ok || row.State.MaxValue == nil {
		return 0, false
	}
	return row.State.MaxValue.Int64(), true
}
