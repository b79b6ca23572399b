package rest

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// A creation is a create request.
type creation[R any] struct {
	name  domain.Name
	given *R                // the resource in the body
	extra map[string]string // the other fields of the body
	p     *request.Params

	options *domain.JobOptions // settings of a job that the OpenAI API creates; otherwise nil
}

func (res *resource[S, R]) post(c *call) (any, error) {
	p := c.Params()
	given, name, extra, err := res.readCreate(c, p)
	if err != nil {
		return nil, err
	}
	onlyValidate := res.validateOnly && p.Flag("validateOnly")
	earlier, err := c.Recorded(name)
	if err != nil {
		return nil, err
	}
	sent, err := sentOf(res, given)
	if err != nil {
		return nil, err
	}
	planned, err := res.create(c, &creation[R]{name: name, given: given, extra: extra, p: p})
	planned = withWarnings(c, res, p, nil, planned, sent, given)
	intent := domain.Intend(res.kind, name, planned.command)
	if earlier.Position() == 0 { // no earlier attempt of this request has created the resource
		if err != nil {
			return nil, err
		}
		if err := allViolations(c, intent, p, res.prefixed); err != nil {
			return nil, err
		}
	}
	if onlyValidate {
		return res.simulate(c, intent, planned)
	}
	result, err := c.Do(intent)
	if err != nil {
		return nil, res.prefixed(err)
	}
	return res.respond(c, result, planned)
}

// respond returns the resource for the response, in its state after the change that the call has
// recorded, with the fields that planned.respond sets.
func (res *resource[S, R]) respond(c *call, change eventlog.Change, planned plan[S, R]) (*R, error) {
	out, err := res.reply(c, change)
	if err == nil && planned.respond != nil {
		planned.respond(out)
	}
	return out, err
}

// simulate responds with the resource that a create would return, but records nothing.
func (res *resource[S, R]) simulate(c *call, intent domain.Intent, planned plan[S, R]) (any, error) {
	state, _ := c.World.Row(intent.Name)
	record, err := intent.Decide(state, c.Time)
	if err != nil {
		return nil, err
	}
	row := &projections.Row[S]{Name: intent.Name, CreateTime: c.Time, UpdateTime: c.Time}
	if err := res.kind.Fold(&row.State, record); err != nil {
		return nil, err
	}
	out := new(R)
	res.render(c.View(), row, out)
	if planned.respond != nil {
		planned.respond(out)
	}
	return out, nil
}

// readCreate returns the resource in the body of a create request, its name, and the other fields
// of the body. It adds violations to p instead of returning an error, so that the caller can report
// them together with those of the command.
func (res *resource[S, R]) readCreate(c *call, p *request.Params) (given *R, name domain.Name, extra map[string]string,
	err error) {
	id := ""
	if res.wrapper == "" && res.idParam != "" {
		id = p.Text(res.idParam)
	}
	_, b, err := p.Body(res.envelope(), res.wrapper != "")
	if err != nil {
		return nil, "", nil, err
	}
	given, extra = new(R), map[string]string{}
	if outer := b; res.wrapper != "" {
		b, _ = outer[res.wrapper].(map[string]any)
		id, _ = outer[res.idParam].(string)
		for _, name := range res.extra {
			extra[name], _ = outer[name].(string)
		}
	}
	if err := b.Fill(given); err != nil {
		return nil, "", nil, err
	}
	if res.idParam == "" {
		named, _ := b["name"].(string)
		id = named[strings.LastIndexByte(named, '/')+1:]
	}
	if id == "" && res.idParam != "" {
		id = strings.ToLower(res.noun[:1]) + c.NewUUID("ID") // an ID begins with a letter
	}
	idField := res.idParam
	if idField == "" {
		idField = "name"
	}
	p.Violations.Require(domain.ValidID(id), idField, "%s", domain.IDRule)
	return given, domain.NewName(c.Account, res.kind.Collection, id), extra, nil
}

// envelope returns the type of a create request's body: an object such as {dataset: {…}, datasetId:
// "…"} or, for a kind without a wrapper, the type of the resource.
func (res *resource[S, R]) envelope() reflect.Type {
	if res.wrapper == "" {
		return reflect.TypeFor[R]()
	}
	fields := []reflect.StructField{wire.StructField("Resource", res.wrapper, reflect.TypeFor[R]()),
		wire.StructField("ID", res.idParam, reflect.TypeFor[string]())}
	for i, name := range res.extra {
		fields = append(fields, wire.StructField(fmt.Sprintf("Extra%d", i), name, reflect.TypeFor[string]()))
	}
	return reflect.StructOf(fields)
}

// allViolations returns one error with the violations of p and those that the command's Decide
// finds. If p has no violations, it returns nil without a call of Decide. prefix translates the
// field names in an error to those of the request's body.
func allViolations(c *call, intent domain.Intent, p *request.Params, prefix func(error) error) error {
	if p.Err() == nil {
		return nil
	}
	state, _ := c.World.Row(intent.Name)
	_, err := intent.Decide(state, c.Time)
	p.AddFrom(prefix(err))
	return p.Err()
}

// unprefixed returns err unchanged. It is the argument prefix of allViolations if the body is the
// resource.
func unprefixed(err error) error { return err }

// prefixed returns err with the name of the wrapper, the field of the body that contains the
// resource, before the field names of its violations.
func (res *resource[S, R]) prefixed(err error) error {
	if res.wrapper == "" {
		return err
	}
	return prefixedBy(res.wrapper+".", err)
}

func prefixedBy(prefix string, err error) error {
	var f *domain.Error
	if !errors.As(err, &f) || len(f.Violations) == 0 {
		return err
	}
	var v domain.Violations
	for _, one := range f.Violations {
		v.Add(prefix+one.Field, "%s", one.Description)
	}
	return v.Err()
}
