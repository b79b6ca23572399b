package schedulers

import (
	"fmt"

	"anneal/domain"
	"anneal/projections"
)

// guaranteedAccelerators returns how many accelerators are guaranteed to each account: the values
// of its quotas domain.QuotaGuaranteed.
func guaranteedAccelerators(v *projections.View) map[string]int64 {
	numbers := map[string]int64{}
	for row := range v.Quotas.All() {
		if row.Name.ID() == domain.QuotaGuaranteed && row.State.MaxValue != nil && *row.State.MaxValue > 0 {
			numbers[row.Name.Account()] = row.State.MaxValue.Int64()
		}
	}
	return numbers
}

// acceleratorQuotas checks the accelerators that a plan allocates to jobs against the quotas of
// their accounts. The API checks the accelerators of deployments.
type acceleratorQuotas struct {
	view *projections.View
	used map[string]int64 // by account: number of accelerators in use, including those that the plan allocates
}

// exceeded returns a text about the quota that an attempt with this need would exceed; "" when it
// exceeds none. The text is part of the status of every waiting job. It does not contain the
// account's usage, because each status would then be recorded again whenever the usage changes.
func (q acceleratorQuotas) exceeded(account string, need domain.Need) string {
	limit, set := q.view.Quota(account, domain.QuotaAccelerators)
	more := int64(devices(need.Resources) * need.Count)
	if !set || more == 0 {
		return ""
	}
	if _, known := q.used[account]; !known {
		q.used[account] = q.view.Usage(account).Accelerators
	}
	if q.used[account]+more <= limit {
		return ""
	}
	quota := domain.NewName(account, domain.Quotas.Collection, domain.QuotaAccelerators)
	if more > limit {
		return fmt.Sprintf("%s: the job alone needs %d, and %s allows %d: ask the operator to raise the quota",
			domain.HeldForQuota, more, quota, limit)
	}
	return fmt.Sprintf("%s: the job needs %d, but fewer are left of the %d that %s allows: "+
		"scale down deployments or cancel jobs, or ask the operator to raise the quota",
		domain.HeldForQuota, more, limit, quota)
}

// take adds the accelerators of an attempt that the plan starts to the account's usage.
func (q acceleratorQuotas) take(account string, need domain.Need) {
	if _, known := q.used[account]; known {
		q.used[account] += int64(devices(need.Resources) * need.Count)
	}
}
