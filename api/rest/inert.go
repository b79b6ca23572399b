package rest

import (
	"strings"

	"anneal/api/inert"
	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// withWarnings returns the plan with a respond function that also warns of the fields of a request
// that have no effect on the resource. before is the row before an update, or nil. given are forms
// of the resource in the request: as it was sent, and as a create has completed it.
func withWarnings[S domain.State, R any](c *call, res *resource[S, R], p *request.Params,
	before *projections.Row[S], planned plan[S, R], given ...any) plan[S, R] {
	fields, respond := inert.Of(res.kind.Collection), planned.respond
	planned.respond = func(out *R) {
		if respond != nil {
			respond(out)
		}
		for _, one := range given {
			c.warnInert(fields, one, out)
		}
		if len(p.Outputs) == 0 && len(p.Zeros) == 0 {
			return
		}
		var old any
		if before != nil {
			rendered := new(R)
			res.render(c.View(), before, rendered)
			old = rendered
		}
		warnOutputs(c, p, res.wrapper, old, out)
		warnZeros(c.Call, p, res.wrapper, treeOf(old), treeOf(out))
	}
	return planned
}

// sentOf returns the fields of the resource in a create request as they were sent: a create completes
// and clears fields of given. It returns nil for a request that sets no field that may have no effect.
func sentOf[S domain.State, R any](res *resource[S, R], given *R) (map[string]any, error) {
	return inert.Given(inert.Of(res.kind.Collection), given)
}

// warnOutputs warns of output-only fields that the body of p sets; see inert.OutputWarnings. wrapper
// is the field of the body that holds the resource, or "". before is nil for a new resource.
func warnOutputs(c *call, p *request.Params, wrapper string, before, after any) {
	given := map[string]any{}
	for path, value := range p.Outputs {
		if wrapper != "" {
			path = strings.TrimPrefix(path, wrapper+".")
		}
		given[path] = value
	}
	if len(given) == 0 {
		return
	}
	old, err := inert.Tree(before)
	if err != nil {
		return // the response cannot be encoded either
	}
	if changed, err := inert.Tree(after); err == nil {
		request.WarnInert(c.Call, inert.OutputWarnings(given, old, changed))
	}
}

// treeOf returns the JSON object of a wire value; nil without one.
func treeOf(value any) map[string]any {
	if value == nil {
		return nil
	}
	tree, _ := inert.Tree(value) // after an error, the response cannot be encoded either
	return tree
}

// warnInert warns of the fields that given sets and that have no effect on the resource out.
func (c *call) warnInert(fields []inert.Field, given, out any) {
	set, err := inert.Given(fields, given)
	if err != nil || set == nil {
		return // after an error, the response cannot be encoded either
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
