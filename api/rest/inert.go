package rest

import (
	"anneal/api/inert"
	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// withWarnings returns the plan with a respond function that also warns of the fields of given that
// have no effect on the resource.
func withWarnings[S domain.State, R any](c *call, res *resource[S, R], given *R, planned plan[S, R]) plan[S, R] {
	fields := inert.Of(res.kind.Collection)
	if len(fields) == 0 {
		return planned
	}
	respond := planned.respond
	planned.respond = func(out *R) {
		if respond != nil {
			respond(out)
		}
		c.warnInert(fields, given, out)
	}
	return planned
}

// warnInert warns of the fields that given sets and that have no effect on the resource out.
func (c *call) warnInert(fields []inert.Field, given, out any) {
	set, err := inert.Tree(given)
	if err != nil {
		return // the response cannot be encoded either
	}
	if fields = inert.Set(fields, set); len(fields) == 0 {
		return
	}
	resource, err := inert.Tree(out)
	if err != nil {
		return
	}
	facts := inert.Facts{Fields: resource, DirectRoutes: c.Routes != nil, Located: c.View().Located(),
		HotLoads:     func(ref string) (bool, bool) { return hotLoads(c, ref) },
		HasPrecision: c.hasPrecision, Engines: func() []string { return projections.EngineNames(c.View()) }}
	request.WarnInert(c.Call, inert.Warnings(fields, set, facts))
}

// warnParameters warns of parameters of the query that have no effect.
func (c *call) warnParameters() {
	request.WarnInert(c.Call, inert.ParameterWarnings(inert.Of(c.Operation.ID), c.Request.URL.Query()))
}

// hotLoads reports whether a deployment of the account has enableHotLoad. ref is its ID or its
// resource name.
func hotLoads(c *call, ref string) (enabled, ok bool) {
	name, isName := domain.ParseName(ref, domain.Deployments.Collection)
	if !isName {
		name = domain.NewName(c.Account, domain.Deployments.Collection, ref)
	}
	row, ok := c.View().Deployments.Get(name)
	return ok && row.State.EnableHotLoad, ok
}

// hasPrecision reports whether the stored weights of a model, or of the base model of an addon,
// have the precision. If copies is true, it also returns true when a READY copy of the weights has
// it. It returns true for a model that the account may not use.
func (c *call) hasPrecision(model, precision string, copies bool) bool {
	row, ok := c.baseOf(model)
	return !ok || row.State.Precision == precision || copies && row.State.Copies[precision].State == domain.CopyReady
}
