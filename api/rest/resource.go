package rest

import (
	"net/http"
	"reflect"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/projections/query"
)

// A resource declares the operations of one kind. S is the state of the kind, and R its wire type:
// a struct whose tags state which fields requests may set. A kind does not have the operations
// whose hooks are nil.
type resource[S domain.State, R any] struct {
	kind *domain.Kind[S]
	noun string // name of a resource of the kind in messages, such as "dataset"
	// field of the create request's body that contains the resource; "" if the body is the resource
	wrapper  string
	extra    []string // names of the fields of a create request's body besides wrapper
	requires []string // names of the fields that a body without a wrapper must have
	// parameter or field of a create request with the ID; "" if the ID is in the field name
	idParam      string
	order        string // default value of orderBy; "" means name
	named        bool   // the body of an update request must contain the resource name, in the field "name"
	reads        request.Permission
	writes       request.Permission
	public       func(*S) bool // reports whether all accounts may read the resource
	hidden       func(*S) bool // reports whether lists contain the resource only if showDeleted is true
	deletes      bool          // lists have the parameter showDeleted
	ignoresQuery bool          // lists accept filter and orderBy, but ignore them
	validateOnly bool          // creates have the parameter validateOnly

	createParameters, updateParameters, deleteParameters []request.Parameter

	// render sets the fields of out from a row, except those that differ between servers. v is nil
	// if only the state of the row is needed, such as for a merge.
	render func(v *projections.View, row *projections.Row[S], out *R)
	// computed maps the JSON name of a field of out to a function that sets only this field, to the
	// value that render sets. It has only fields that are computed from the row alone: see
	// query.Rendering. It may be nil.
	computed map[string]func(row *projections.Row[S], out *R)
	// dependent has the fields, by JSON name, of which render or local may set another value for the
	// same row, such as by live status or other resources. The function reports whether they may do so
	// for a row; nil means for all rows. Lists render rows for the values of these fields, and read
	// others from columns. If dependent is nil, any field may depend on something else.
	dependent map[string]func(row *projections.Row[S]) bool
	// creator returns what creatorOf makes the field createdBy of; nil if there is no such field.
	creator func(*S) string
	// local sets the fields of out that depend on this server. It may be nil.
	local func(c *call, row *projections.Row[S], out *R)
	// single sets the fields of out that only the response to a get of the present state has. It
	// may be nil.
	single func(c *call, row *projections.Row[S], out *R) error
	// create and update validate a request, and return the plan of the change. They add violations
	// to the Params of the request.
	create func(c *call, q *creation[R]) (plan[S, R], error)
	update func(c *call, q *update[S, R]) (plan[S, R], error)
	remove func(c *call, row *projections.Row[S], p *request.Params) (domain.Command[S], error)
	// afterDelete is called after this server has deleted a resource. It may be nil.
	afterDelete func(c *call, row *projections.Row[S])

	// fields has the fields that filter and orderBy of lists may name: see fieldsOf.
	fields *query.Fields[R]
}

// A plan is a validated create or update before it is recorded.
type plan[S domain.State, R any] struct {
	command domain.Command[S]
	// respond sets the fields that only the response to this request has. It may be nil.
	respond func(out *R)
}

// historyPermission returns the permission that is needed to read the events of a resource.
// ReadModels is not enough, because events contain the names of API keys.
func (res *resource[S, R]) historyPermission() request.Permission {
	if res.reads == request.ReadModels {
		return request.Read
	}
	return res.reads
}

func (res *resource[S, R]) table(v *projections.View) *projections.Table[S] {
	return projections.TableOf(v, res.kind)
}

// row returns the row of the resource that the path names, or a NotFound error. If another client
// has deleted the resource after an earlier attempt of this request has changed it, row returns the
// row after that change.
func (res *resource[S, R]) row(c *call) (*projections.Row[S], error) {
	name := domain.NewName(c.Account, res.kind.Collection, c.PathValue("id"))
	if row, ok := res.table(c.View()).Get(name); ok {
		return row, nil
	}
	// another client may have deleted the resource after an earlier attempt of the request
	earlier, err := c.Recorded(name)
	switch {
	case err != nil:
		return nil, err
	case earlier.Position() == 0:
		return nil, request.NotFound(res.noun, name)
	}
	return res.changed(c, earlier)
}

// changed returns the row of the resource after the change that the call has recorded, without
// later changes of other clients.
func (res *resource[S, R]) changed(c *call, change eventlog.Change) (*projections.Row[S], error) {
	after, err := change.After(c.World)
	if err != nil {
		return nil, err
	}
	state, _ := after.State.(S)
	return &projections.Row[S]{Name: change.Name, State: state, CreateTime: after.CreateTime,
		CreateEvent: after.CreateEvent, UpdateTime: after.UpdateTime, Version: after.Version}, nil
}

// reply returns the resource for the response, in its state after the change that the call has
// recorded.
func (res *resource[S, R]) reply(c *call, change eventlog.Change) (*R, error) {
	row, err := res.changed(c, change)
	if err != nil {
		return nil, err
	}
	return res.rendered(c, row), nil
}

// rendered returns the resource of a row as a response contains it.
func (res *resource[S, R]) rendered(c *call, row *projections.Row[S]) *R {
	out := new(R)
	res.show(c, row, out)
	return out
}

// show sets the fields of out from a row with the hooks render and local.
func (res *resource[S, R]) show(c *call, row *projections.Row[S], out *R) {
	res.render(c.View(), row, out)
	if res.local != nil {
		res.local(c, row, out)
	}
}

func (res *resource[S, R]) get(c *call) (any, error) {
	if err := res.mayRead(c, c.PathValue("id")); err != nil {
		return nil, err
	}
	p := c.Params()
	m := wire.ParseReadMask(&p.Violations, reflect.TypeFor[R](), p.Texts("readMask"))
	if err := p.Err(); err != nil {
		return nil, err
	}
	row, err := res.row(c)
	if err != nil {
		return nil, err
	}
	out := new(R)
	res.show(c, row, out)
	if res.single != nil && c.View().Past == nil {
		if err := res.single(c, row, out); err != nil {
			return nil, err
		}
	}
	return m.Project(out)
}

// publicAccount is the account whose public resources the installation provides to all accounts.
const publicAccount = "default"

// mayRead returns an error unless the principal may read the resource with the ID or, if id is "",
// list the resources of the account. Principals of other accounts may list only publicAccount, and
// only its public resources.
func (res *resource[S, R]) mayRead(c *call, id string) error { return res.authorize(c, id, res.reads) }

// authorize returns an error unless the principal has the permission in the account of the path.
// For a public resource, the permission in the principal's own account is enough.
func (res *resource[S, R]) authorize(c *call, id string, permission request.Permission) error {
	err := c.Principal.Authorize(c.Account, permission)
	if err == nil || res.public == nil || c.Principal.Account == c.Account || c.Principal.Require(permission) != nil {
		return err
	}
	if id == "" && c.Account == publicAccount {
		return nil
	}
	name := domain.NewName(c.Account, res.kind.Collection, id)
	row, ok := res.table(c.View()).Get(name)
	if ok && res.public(&row.State) && res.isPublicNow(c, row) {
		return nil
	}
	return err
}

// isPublicNow reports whether the resource of then, an earlier row, still exists, and all accounts
// may read it at present. It returns false if the resource was deleted and created again.
func (res *resource[S, R]) isPublicNow(c *call, then *projections.Row[S]) bool {
	row, ok := res.table(request.Present(c.Call)).Get(then.Name)
	return ok && row.CreateEvent == then.CreateEvent && res.public(&row.State)
}

// verb returns the handler of a custom verb without settings: it reads the empty body, and calls h
// with the row that the path names.
func (res *resource[S, R]) verb(h func(c *call, row *projections.Row[S]) (any, error)) handler {
	return func(c *call) (any, error) {
		p := c.Params()
		if c.Operation.Method != http.MethodGet {
			if err := p.ReadVerb(&struct{}{}); err != nil {
				return nil, err
			}
		}
		if err := p.Err(); err != nil {
			return nil, err
		}
		row, err := res.row(c)
		if err != nil {
			return nil, err
		}
		return h(c, row)
	}
}
