package rest

import (
	"reflect"
	"slices"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/query"
)

// Quota is the wire type of a quota: the limit of an account for one quantity, and the account's
// current usage.
type Quota struct {
	Name string `json:"name" api:"output"`
	// limit that applies; absent if there is none
	Value      *domain.Count `json:"value,omitempty" api:"output"`
	MaxValue   *domain.Count `json:"maxValue,omitempty"`
	Usage      domain.Count  `json:"usage" api:"output"`
	UpdateTime *time.Time    `json:"updateTime,omitempty" api:"output"`
}

// quotas declares the operations of the kind quota. Each account has all quotas: a read of a quota
// that was never set returns a quota without a limit.
var quotas = &resource[domain.Quota, Quota]{
	kind: domain.Quotas, noun: "quota", reads: request.Read, writes: request.Operate,
	fields: fieldsOf[Quota](),
}

var _ = register(quotaOperations)

func quotaOperations(s *Service) []request.Operation {
	all := quotas.operations(s)
	for i, handle := range []handler{listQuotas, getQuota, listQuotaEvents} {
		all[i].Handle = s.handle(handle)
		all[i].Uncounted = i < 2 // listQuotaEvents counts against the rate limit, because it reads the log
	}
	return append(all, request.Operation{ID: "updateQuota", Method: "PATCH", Path: request.CollectionPath + "quotas/{id}",
		Tag: "quotas", Gate: request.ByOperator,
		Summary: "Set or remove a quota",
		Description: "If maxValue is null, the limit is removed. Usage above a new limit remains; only further usage is " +
			"rejected.",
		Query: []request.Parameter{request.UpdateMaskParameter}, Body: reflect.TypeFor[Quota](),
		Response: reflect.TypeFor[Quota](), Handle: s.handle(updateQuota)})
}

func quotaRow(v *projections.View, account, id string) *projections.Row[domain.Quota] {
	name := domain.NewName(account, domain.Quotas.Collection, id)
	if row, ok := v.Quotas.Get(name); ok {
		return row
	}
	return &projections.Row[domain.Quota]{Name: name}
}

// renderQuota returns the renderer of the account's quotas. For requests-per-minute, the usage has
// only the requests to this server.
func renderQuota(c *call) func(*projections.Row[domain.Quota], *Quota) {
	usage := c.View().Usage(c.Account)
	usage.StorageBytes = c.View().Storage(c.Account)
	return func(row *projections.Row[domain.Quota], out *Quota) {
		*out = Quota{Name: string(row.Name), Value: row.State.MaxValue, MaxValue: row.State.MaxValue,
			Usage: domain.Count(usage.Of(row.Name.ID())), UpdateTime: wire.TimestampOf(&row.UpdateTime)}
		if row.Name.ID() == domain.QuotaRequestsPerMinute && c.View().Past == nil {
			out.Usage = domain.Count(c.RequestsUsed())
		}
	}
}

func listQuotas(c *call) (any, error) {
	p := c.Params()
	q, m := request.ReadListQuery(c.Call, p, reflect.TypeFor[Quota]())
	v := c.View()
	rows := func(yield func(*projections.Row[domain.Quota]) bool) {
		for _, id := range domain.QuotaIDs {
			if !yield(quotaRow(v, c.Account, id)) {
				return
			}
		}
	}
	page, err := query.List(rows, renderQuota(c), quotas.fields, q)
	if err := request.JoinErrors(p.Err(), err); err != nil {
		return nil, err
	}
	return request.ListResponse("quotas", page.Items, page.NextPageToken, page.TotalSize, m)
}

// knownQuota returns the resource name of the quota that the path names, or NotFound if the ID is
// not in domain.QuotaIDs.
func knownQuota(c *call) (domain.Name, error) {
	name := domain.NewName(c.Account, domain.Quotas.Collection, c.PathValue("id"))
	if !slices.Contains(domain.QuotaIDs, name.ID()) {
		return "", request.NotFound("quota", name)
	}
	return name, nil
}

func getQuota(c *call) (any, error) {
	p := c.Params()
	m := wire.ParseReadMask(&p.Violations, reflect.TypeFor[Quota](), p.Texts("readMask"))
	if err := p.Err(); err != nil {
		return nil, err
	}
	name, err := knownQuota(c)
	if err != nil {
		return nil, err
	}
	var out Quota
	renderQuota(c)(quotaRow(c.View(), c.Account, name.ID()), &out)
	return m.Project(&out)
}

func listQuotaEvents(c *call) (any, error) {
	name, err := knownQuota(c)
	if err != nil {
		return nil, err
	}
	return c.Events.Serve(c.Call, name.Subject())
}

// updateQuota sets or removes the limit of a quota.
func updateQuota(c *call) (any, error) {
	p, t := c.Params(), reflect.TypeFor[Quota]()
	value, b, err := p.Body(t, false)
	if err != nil {
		return nil, err
	}
	m := wire.ParseUpdateMask(&p.Violations, t, p.Texts("updateMask"), b)
	p.Violations.Require(m.Has("maxValue"), "maxValue", "is required: the new limit, or null to remove the limit")
	name, err := knownQuota(c)
	if err != nil {
		return nil, err
	}
	account := domain.Name("accounts/" + c.Account)
	// the operator's account has no quotas, because they could lock the operator out
	if _, ok := c.View().Accounts.Get(account); !ok || c.Account == domain.System {
		return nil, request.NotFound("account with quotas", account)
	}
	quotas.checkName(p, value, name)
	var given, old Quota
	renderQuota(c)(quotaRow(c.View(), c.Account, name.ID()), &old)
	if err := b.Fill(&given); err != nil {
		return nil, err
	}
	var command domain.Command[domain.Quota] = domain.LiftQuota{}
	if given.MaxValue != nil {
		command = domain.SetQuota{MaxValue: *given.MaxValue}
	}
	intent := domain.Intend(domain.Quotas, name, command)
	if err := allViolations(c, intent, p, unprefixed); err != nil {
		return nil, err
	}
	result, err := c.Do(intent)
	if err != nil {
		return nil, err
	}
	row, err := quotas.changed(c, result)
	if err != nil {
		return nil, err
	}
	if !row.State.Exists() {
		row = &projections.Row[domain.Quota]{Name: name}
	}
	var out Quota
	renderQuota(c)(row, &out)
	warnOutputs(c, p, "", old, &out)
	return &out, nil
}
