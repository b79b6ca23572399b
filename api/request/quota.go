package request

import (
	"context"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/projections"
)

// countedQuotas lists the quotas that bound what exists at the same time, unlike the rate of
// requests.
var countedQuotas = []string{domain.QuotaAccelerators, domain.QuotaDeployments, domain.QuotaJobs,
	domain.QuotaStorageBytes}

// quotaCheck checks a call's changes against the quotas of their account.
type quotaCheck struct{ *Call }

// admit returns an error if the intents would exceed a quota of their account. Until the caller
// calls leave, this server admits no other change that adds to the account's usage, so that two
// concurrent changes cannot both use the last of a quota. Each other server may admit one more
// change until it has read the event of this one.
func (c quotaCheck) admit(ctx context.Context, intents []domain.Intent) (leave func(), err error) {
	leave = func() {}
	account := ""
	for _, intent := range intents {
		if counts(intent.Name.Collection()) {
			account = intent.Name.Account() // all intents of a call have the same account
		}
	}
	if account == "" || !bounded(c.World.View(), account) {
		return leave, nil
	}
	if !takesMore(c.weighAll(intents)) { // an update or a delete adds no usage, so it does not wait
		return leave, nil
	}
	if leave, err = c.quotas.enter(ctx, "accounts/"+account); err != nil {
		return nil, err
	}
	v, more := c.World.View(), c.weighAll(intents)
	usage := v.Usage(account)
	if more.StorageBytes > 0 {
		usage.StorageBytes = v.Storage(account)
	}
	for _, id := range countedQuotas {
		limit, set := v.Quota(account, id)
		if set && more.Of(id) > 0 && usage.Of(id)+more.Of(id) > limit {
			leave()
			return nil, OverQuota(account, id, limit, usage.Of(id), more.Of(id))
		}
	}
	return leave, nil
}

func takesMore(u domain.Usage) bool {
	return slices.ContainsFunc(countedQuotas, func(id string) bool { return u.Of(id) > 0 })
}

func bounded(v *projections.View, account string) bool {
	for _, id := range countedQuotas {
		if _, set := v.Quota(account, id); set {
			return true
		}
	}
	return false
}

// OverQuota returns the error of a request that would exceed a quota. used is the present usage,
// and more is what the request adds. If the request alone exceeds the quota, the error says that
// retries fail until the operator raises the quota.
func OverQuota(account, id string, limit, used, more int64) error {
	noun := strings.ReplaceAll(id, "-", " ")
	if more > limit {
		f := domain.Errorf(domain.ResourceExhausted,
			"accounts/%s has a quota of %d %s, but this request alone adds %d: ask the operator to raise "+
				"accounts/%s/quotas/%s; "+
				"retries fail until then", account, limit, noun, more, account, id)
		f.Reason = ReasonQuotaTooSmall
		return f
	}
	wayOut := "delete, cancel or scale down other resources"
	if id == domain.QuotaStorageBytes {
		wayOut = "delete some datasets, models or evaluators"
	}
	f := domain.Errorf(domain.ResourceExhausted,
		"accounts/%s has a quota of %d %s and uses %d; the request adds %d: %s, or ask the operator to raise "+
			"accounts/%s/quotas/%s",
		account, limit, noun, used, more, wayOut, account, id)
	f.Reason = "QUOTA_EXCEEDED"
	return f
}

func (c quotaCheck) weighAll(intents []domain.Intent) (more domain.Usage) {
	for _, intent := range intents {
		more = more.Plus(c.weigh(intent))
	}
	return more
}

// weigh returns the usage that an intent would add to the account; the zero Usage if Decide rejects
// the intent.
func (c quotaCheck) weigh(intent domain.Intent) domain.Usage {
	before, version := c.World.Row(intent.Name)
	if intent.IsStale(version) {
		return domain.Usage{} // the row has changed, so Merge will compute the intent again
	}
	record, err := intent.Decide(before, c.Time)
	if err != nil || record.Type == "" {
		return domain.Usage{}
	}
	after, err := c.World.After(intent.Name, before, record)
	if err != nil {
		return domain.Usage{} // the same error is returned when the intent is recorded
	}
	return usageOf(after).Minus(usageOf(before))
}

// counts reports whether resources of a collection have a usage that counts against countedQuotas.
func counts(collection string) bool {
	kind := domain.KindOf(collection)
	if kind == nil {
		return false
	}
	_, ok := kind.NewRow("").Pointer().(domain.Metered)
	return ok
}

func usageOf(state any) domain.Usage {
	if counted, ok := state.(domain.Metered); ok {
		return counted.Usage()
	}
	return domain.Usage{}
}
