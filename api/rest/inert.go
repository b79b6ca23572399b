package rest

import (
	"strings"

	"anneal/api/inert"
	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// withWarnings returns the plan with a respond function that also adds warnings about the request's
// fields that have no effect on the resource. previous is the row before an update, or nil. given
// has the resource as the request sent it and, for a create, as the server has completed it.
func withWarnings[S domain.State, R any](c *call, res *resource[S, R], p *request.Params,
	previous *projections.Row[S], planned plan[S, R], given ...any) plan[S, R] {
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
		if previous != nil {
			rendered := new(R)
			res.render(c.View(), previous, rendered)
			old = rendered
		}
		warnOutputs(c, p, res.wrapper, old, out)
		warnZeros(c.Call, p, res.wrapper, treeOf(old), treeOf(out))
	}
	return planned
}

// sentOf returns the fields of the resource in a create request as they were sent, because a create
// completes and clears fields of given. It returns nil if the request sets no field that may have
// no effect.
func sentOf[S domain.State, R any](res *resource[S, R], given *R) (map[string]any, error) {
	return inert.Given(inert.Of(res.kind.Collection), given)
}

// warnOutputs adds warnings about output-only fields that the request tries to change: see
// inert.OutputWarnings. wrapper is the field of the body that contains the resource; "" if the body
// is the resource. previous is nil for a new resource.
func warnOutputs(c *call, p *request.Params, wrapper string, previous, updated any) {
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
	old, err := inert.Tree(previous)
	if err != nil {
		return // encoding the response fails too, and reports the error
	}
	if changed, err := inert.Tree(updated); err == nil {
		request.WarnInert(c.Call, inert.OutputWarnings(given, old, changed))
	}
}

// treeOf returns a wire value as a JSON object; nil for nil.
func treeOf(value any) map[string]any {
	if value == nil {
		return nil
	}
	tree, _ := inert.Tree(value) // if encoding fails, encoding the response fails too
	return tree
}

// warnInert adds warnings about the fields that given sets but that have no effect on the resource
// out.
func (c *call) warnInert(fields []inert.Field, given, out any) {
	set, err := inert.Given(fields, given)
	if err != nil || set == nil {
		return // if encoding fails, encoding the response fails too
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

// warnParameters adds warnings about query parameters that have no effect.
func (c *call) warnParameters() {
	request.WarnInert(c.Call, inert.ParameterWarnings(inert.Of(c.Operation.ID), c.Request.URL.Query()))
}

// hotLoads reports whether a deployment of the account has enableHotLoad. ref is its ID or resource
// name; ok is false if there is no such deployment.
func hotLoads(c *call, ref string) (enabled, ok bool) {
	name, isName := domain.ParseName(ref, domain.Deployments.Collection)
	if !isName {
		name = domain.NewName(c.Account, domain.Deployments.Collection, ref)
	}
	row, ok := c.View().Deployments.Get(name)
	return ok && row.State.EnableHotLoad, ok
}

// hasPrecision reports whether the stored weights of a model or, for an addon, of its base model
// have the precision. If copies is true, a READY copy in that precision counts too. It returns true
// for a model that the account may not use.
func (c *call) hasPrecision(model, precision string, copies bool) bool {
	row, ok := c.baseOf(model)
	return !ok || row.State.Precision == precision || copies && row.State.Copies[precision].State == domain.CopyReady
}
