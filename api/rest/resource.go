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

// A resource declares the operations of one kind. S is the state of a resource of the kind. R is
// the wire type, a struct whose tags state which fields requests may set. A kind lacks the
// operations whose hooks are nil.
type resource[S domain.State, R any] struct {
	kind         *domain.Kind[S]
	noun         string   // name of the kind in messages, such as "dataset"
	wrapper      string   // field of create's body that holds the resource; "" when the body is the resource
	extra        []string // further fields of a body with a wrapper
	requires     []string // fields that a body without a wrapper must have
	idParam      string   // parameter or field of create with the ID; "" when the ID is in the name in the body
	order        string   // default of orderBy; "" is name
	named        bool     // PATCH requires the name in the body
	reads        request.Permission
	writes       request.Permission
	public       func(*S) bool // reports whether any account may read the resource
	hidden       func(*S) bool // reports whether lists contain the resource only with showDeleted
	deletes      bool          // list has the parameter showDeleted
	ignoresQuery bool          // list accepts filter and orderBy and ignores them
	validateOnly bool          // create has the parameter validateOnly

	createParameters, updateParameters, deleteParameters []request.Parameter

	// render writes the wire form of a row to out, without the fields that differ between servers.
	// v is nil when only the state of the row is rendered.
	render func(v *projections.View, row *projections.Row[S], out *R)
	// computed has functions that set single fields, by JSON name, as render does, if they depend on nothing
	// but the row: see query.Rendering. It may be nil.
	computed map[string]func(row *projections.Row[S], out *R)
	// local adds the fields that depend on the settings of this server. It may be nil.
	local func(c *call, row *projections.Row[S], out *R)
	// single adds the fields that only the response to a get of the present state contains. It may be
	// nil.
	single func(c *call, row *projections.Row[S], out *R) error
	// create and update validate a request and return the plan of the change. They add violations
	// to the Params of the request.
	create func(c *call, q *creation[R]) (plan[S, R], error)
	update func(c *call, q *update[S, R]) (plan[S, R], error)
	remove func(c *call, row *projections.Row[S], p *request.Params) (domain.Command[S], error)
	// afterDelete is called after this server has deleted a resource. It may be nil.
	afterDelete func(c *call, row *projections.Row[S])

	// fields are those that filter and orderBy of list may name: see fieldsOf.
	fields *query.Fields[R]
}

// A plan is a validated create or update that is not recorded yet.
type plan[S domain.State, R any] struct {
	command domain.Command[S]
	// respond adds fields that only the response to this request contains. It may be nil.
	respond func(out *R)
}

// historyPermission returns the permission to read the events of a resource. The permission
// ReadModels does not suffice, because events contain the principals that caused them.
func (res *resource[S, R]) historyPermission() request.Permission {
	if res.reads == request.ReadModels {
		return request.Read
	}
	return res.reads
}

func (res *resource[S, R]) table(v *projections.View) *projections.Table[S] {
	return projections.TableOf(v, res.kind)
}

// row returns the row of the resource that the path names, or the error NotFound.
func (res *resource[S, R]) row(c *call) (*projections.Row[S], error) {
	name := domain.NewName(c.Account, res.kind.Collection, c.PathValue("id"))
	if row, ok := res.table(c.View()).Get(name); ok {
		return row, nil
	}
	earlier, err := c.Recorded(name) // another client may have deleted the resource after an earlier attempt
	switch {
	case err != nil:
		return nil, err
	case earlier.Position() == 0:
		return nil, request.NotFound(res.noun, name)
	}
	return res.changed(c, earlier)
}

// changed returns the row after the change that the call has recorded, without later changes by
// other clients.
func (res *resource[S, R]) changed(c *call, change eventlog.Change) (*projections.Row[S], error) {
	after, err := change.After(c.World)
	if err != nil {
		return nil, err
	}
	state, _ := after.State.(S)
	return &projections.Row[S]{Name: change.Name, State: state, CreateTime: after.CreateTime,
		CreateEvent: after.CreateEvent, UpdateTime: after.UpdateTime, Version: after.Version}, nil
}

// reply returns the wire form of the resource after the change that the call has recorded.
func (res *resource[S, R]) reply(c *call, change eventlog.Change) (*R, error) {
	row, err := res.changed(c, change)
	if err != nil {
		return nil, err
	}
	return res.rendered(c, row), nil
}

// rendered returns the wire form of a row.
func (res *resource[S, R]) rendered(c *call, row *projections.Row[S]) *R {
	out := new(R)
	res.show(c, row, out)
	return out
}

// show renders a row into out, with the fields of render and local.
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

// publicAccount owns the resources that the installation provides to every account.
const publicAccount = "default"

// mayRead returns an error unless the principal may read the resource with an ID, or list the
// resources when id is "". Principals of other accounts may list only the public resources of
// publicAccount.
func (res *resource[S, R]) mayRead(c *call, id string) error { return res.authorize(c, id, res.reads) }

// authorize returns an error unless the principal has a permission in the account of the path. For
// a public resource, the permission in the principal's own account is enough.
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

// isPublicNow reports whether any account may read a resource at present. A resource that was created
// again is another one.
func (res *resource[S, R]) isPublicNow(c *call, then *projections.Row[S]) bool {
	row, ok := res.table(request.Present(c.Call)).Get(then.Name)
	return ok && row.CreateEvent == then.CreateEvent && res.public(&row.State)
}

// verb returns the handler of a custom method whose body has no fields.
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
