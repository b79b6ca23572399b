package api

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

// Quota is a quota on the wire: the most that an account may have of
// something, and how much of it there is.
type Quota struct {
	Name       string        `json:"name" api:"output"`
	Value      *domain.Count `json:"value,omitempty" api:"output"` // the limit that is in force; absent when there is none
	MaxValue   *domain.Count `json:"maxValue,omitempty"`
	Usage      domain.Count  `json:"usage" api:"output"`
	UpdateTime *time.Time    `json:"updateTime,omitempty" api:"output"`
}

// quotas are there for every account, whether something was set or not: its
// reads are of rows that are made up where there are none.
var quotas = &resource[domain.Quota, Quota]{
	kind: domain.Quotas, noun: "quota", reads: request.Read, writes: request.Operate,
	fields: fieldsOf[Quota](),
}

func quotaOperations(s *Server) []request.Operation {
	all := quotas.operations(s)
	for i, handle := range []handler{listQuotas, getQuota, listQuotaEvents} {
		all[i].Handle = s.handle(handle)
	}
	return append(all, request.Operation{ID: "updateQuota", Method: "PATCH", Path: request.CollectionPath + "quotas/{id}", Tag: "quotas", Gate: request.ByOperator,
		Summary: "Set or lift a quota", Description: "A maxValue of null lifts it. What the account has beyond a new quota stays; it only gets no more.",
		Query: []request.Parameter{request.UpdateMaskParameter}, Body: reflect.TypeFor[Quota](), Response: reflect.TypeFor[Quota](), Handle: s.handle(updateQuota)})
}

func quotaRow(v *projections.View, account, id string) *projections.Row[domain.Quota] {
	name := domain.NewName(account, domain.Quotas.Collection, id)
	if row, ok := v.Quotas.Get(name); ok {
		return row
	}
	return &projections.Row[domain.Quota]{Name: name}
}

// renderQuota makes a renderer of the account's quotas. Requests are counted by
// the server that answers.
func renderQuota(c *call) func(*projections.Row[domain.Quota], *Quota) {
	usage := c.View().Usage(c.Account)
	usage.StorageBytes = c.View().Storage(c.Account)
	return func(row *projections.Row[domain.Quota], out *Quota) {
		*out = Quota{Name: string(row.Name), Value: row.State.MaxValue, MaxValue: row.State.MaxValue,
			Usage: domain.Count(usage.Of(row.Name.ID())), UpdateTime: wire.TimestampOf(&row.UpdateTime)}
		if row.Name.ID() == domain.QuotaRequestsPerMinute {
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

// knownQuota is the name of the quota that the path names.
func knownQuota(c *call) (domain.Name, error) {
	name := domain.NewName(c.Account, domain.Quotas.Collection, c.PathValue("id"))
	if !slices.Contains(domain.QuotaIDs, name.ID()) {
		return "", request.NotFound("quota", name)
	}
	return name, nil
}

func getQuota(c *call) (any, error) {
	p := c.Params()
	m, _ := wire.ParseMask(&p.Violations, "readMask", reflect.TypeFor[Quota](), p.Texts("readMask"), false)
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
	return c.events(name.Subject())
}

// updateQuota sets a quota, or lifts it.
func updateQuota(c *call) (any, error) {
	p, t := c.Params(), reflect.TypeFor[Quota]()
	value, err := request.ReadBody(c.Call, false)
	if err != nil {
		return nil, err
	}
	b := wire.Normalize(&p.Violations, t, value)
	m, all := wire.ParseMask(&p.Violations, "updateMask", t, p.Texts("updateMask"), true)
	if all && len(p.Texts("updateMask")) == 0 {
		m, all = wire.Present(t, b), false
	}
	p.Violations.Require(all || m.Has("maxValue"), "maxValue", "is required: the new limit, or null for none")
	name, err := knownQuota(c)
	if err != nil {
		return nil, err
	}
	account := domain.Name("accounts/" + c.Account)
	if _, ok := c.View().Accounts.Get(account); !ok || c.Account == domain.System { // the operator's own has no quotas: they could lock it out
		return nil, request.NotFound("account with quotas", account)
	}
	quotas.checkName(p, value, name)
	var given Quota
	if err := b.Fill(&given); err != nil {
		return nil, err
	}
	var command domain.Command[domain.Quota] = domain.LiftQuota{}
	if given.MaxValue != nil {
		command = domain.SetQuota{MaxValue: *given.MaxValue}
	}
	intent := domain.Intend(domain.Quotas, name, command)
	if err := refused(c, intent, p, func(err error) error { return err }); err != nil {
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
	return &out, nil
}
