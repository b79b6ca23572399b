package request

import (
	"slices"
	"strings"
	"sync"

	"anneal/domain"
	"anneal/projections"
)

// countedQuotas are the quotas on resources of an account.
var countedQuotas = []string{domain.QuotaAccelerators, domain.QuotaDeployments, domain.QuotaJobs, domain.QuotaStorageBytes}

// A guard serializes the changes that count against the quotas of an account.
type guard struct{ accounts sync.Map } // of *sync.Mutex, by account; only accounts with quotas

func (g *guard) enter(account string) (leave func()) {
	lock, _ := g.accounts.LoadOrStore(account, new(sync.Mutex))
	lock.(*sync.Mutex).Lock()
	return lock.(*sync.Mutex).Unlock
}

// quotaCheck weighs the changes of a call against the quotas of their account.
type quotaCheck struct{ *Call }

// admit refuses intents that would give an account more than its quotas
// allow. Until leave is called no other change of the account is weighed here,
// so that two at once do not both take the last place. Another server weighs
// what it knows: in the moment in which an event is on its way there, each
// server may let one change through.
func (c quotaCheck) admit(intents []domain.Intent) (leave func(), err error) {
	leave = func() {}
	account := ""
	for _, intent := range intents {
		if counts(intent.Name.Collection()) {
			account = intent.Name.Account() // all intents of a call belong to one account
		}
	}
	if account == "" || !bounded(c.World.View(), account) {
		return leave, nil
	}
	if !takesMore(c.weighAll(intents)) { // an update or a delete does not wait
		return leave, nil
	}
	leave = c.guard.enter(account)
	v, more := c.World.View(), c.weighAll(intents)
	usage := v.Usage(account)
	if more.StorageBytes > 0 {
		usage.StorageBytes = v.Storage(account)
	}
	for _, id := range countedQuotas {
		most, set := v.Quota(account, id)
		if set && more.Of(id) > 0 && usage.Of(id)+more.Of(id) > most {
			leave()
			return func() {}, OverQuota(account, id, most, usage.Of(id), more.Of(id))
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

func OverQuota(account, id string, most, used, more int64) error {
	wayOut := "delete, cancel or scale down what is not needed"
	if id == domain.QuotaStorageBytes {
		wayOut = "delete datasets, models or evaluators that are not needed"
	}
	f := domain.Errorf(domain.ResourceExhausted, "accounts/%s may have %d %s and has %d; this takes %d more: %s, or ask the operator to raise accounts/%s/quotas/%s",
		account, most, strings.ReplaceAll(id, "-", " "), used, more, wayOut, account, id)
	f.Reason = "QUOTA_EXCEEDED"
	return f
}

func (c quotaCheck) weighAll(intents []domain.Intent) (more domain.Usage) {
	for _, intent := range intents {
		more = more.Plus(c.weigh(intent))
	}
	return more
}

// weigh is what an intent adds to the account's usage; a refused one, which
// the decision answers, adds nothing.
func (c quotaCheck) weigh(intent domain.Intent) domain.Usage {
	before, _ := c.World.Row(intent.Name)
	record, err := intent.Decide(before, c.Time)
	if err != nil || record.Type == "" {
		return domain.Usage{}
	}
	after, err := c.World.After(intent.Name, before, record)
	if err != nil {
		return domain.Usage{} // the log's own reader will say so
	}
	return usageOf(after).Minus(usageOf(before))
}

// counts reports whether resources of a collection count against quotas.
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
