package rest

import (
	"encoding/json"
	"reflect"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// An update is an update request, merged into the present state of the resource.
type update[S domain.State, R any] struct {
	name   domain.Name
	given  *R        // the fields of the body that are in the mask
	merged *R        // the present resource, with the fields in the mask replaced by those of given
	old    S         // present state of the resource
	mask   wire.Mask // fields that the update changes
	p      *request.Params
	seal   func(value string) (*domain.Sealed, error) // encrypts a secret value, once for all attempts of Merge
}

func (res *resource[S, R]) patch(c *call) (any, error) {
	p := c.Params()
	t := reflect.TypeFor[R]()
	value, b, err := p.Body(t, false)
	if err != nil {
		return nil, err
	}
	m := wire.ParseUpdateMask(&p.Violations, t, p.Texts("updateMask"), b)
	row, err := res.row(c)
	if err != nil {
		return nil, err
	}
	res.checkName(p, value, row.Name)
	given := new(R)
	if err := wire.Body(m.Merge(nil, b)).Fill(given); err != nil { // sets only the fields in the mask
		return nil, err
	}
	seal := c.sealOnce(row.Name)
	planFrom := func(row *projections.Row[S]) (plan[S, R], error) {
		merged, err := res.merged(row, m, b)
		if err != nil {
			return plan[S, R]{}, err
		}
		planned, err := res.update(c, &update[S, R]{row.Name, given, merged, row.State, m, p, seal})
		return withWarnings(c, res, p, row, planned, given), err
	}
	var planned plan[S, R]
	isPlanned := false
	c.Refresh() // the world may have changed while the body was read
	merge := func() (domain.Intent, error) {
		row, err := res.row(c)
		if err != nil {
			return domain.Intent{}, err
		}
		isPlanned = true
		if planned, err = planFrom(row); err != nil {
			return domain.Intent{}, err
		}
		intent := domain.Intend(res.kind, row.Name, planned.command).At(row.Version)
		return intent, allViolations(c, intent, p, unprefixed)
	}
	result, err := c.Merge(row.Name, merge)
	if err != nil {
		return nil, err
	}
	if !isPlanned { // an earlier attempt has recorded the change, so the plan is only needed for the response
		planned, _ = planFrom(row)
	}
	return res.respond(c, result, planned)
}

// merged returns the stored resource, with the fields in the mask replaced by those of the body.
func (res *resource[S, R]) merged(row *projections.Row[S], m wire.Mask, b wire.Body) (*R, error) {
	rendered, merged := new(R), new(R)
	res.render(nil, &projections.Row[S]{Name: row.Name, State: row.State}, rendered)
	data, err := json.Marshal(rendered)
	if err != nil {
		return nil, err
	}
	old, err := wire.Parse(data)
	if err != nil {
		return nil, err
	}
	before := wire.NormalizeStored(reflect.TypeFor[R](), old)
	return merged, wire.Body(m.Merge(before, b)).Fill(merged)
}

// checkName adds a violation if the body has a name that is not the name in the path, or if it has
// no name although the kind requires one (resource.named), as datasets and evaluators do.
func (res *resource[S, R]) checkName(p *request.Params, value any, name domain.Name) {
	object, _ := value.(map[string]any)
	given, ok := object["name"]
	switch {
	case ok && given != string(name):
		p.Violations.Add("name", "must be the name in the path, %s", name)
	case !ok && res.named:
		p.Violations.Add("name", "is required in this request: give the name in the path, %s", name)
	}
}
