package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/projections/query"
)

// A resource says how one collection is asked for. S is its state, R its wire
// type: a struct whose tags say what requests may set. A nil hook is an
// operation that the collection does not have.
type resource[S domain.State, R any] struct {
	kind     *domain.Kind[S]
	noun     string // for messages: "dataset"
	wrapper  string // the field of create's body that holds the resource; "" when the body is the resource
	extra    []string
	requires []string // fields of a create's body, where that is the resource itself
	idParam  string   // where create takes the ID from; "" when givenID does
	order    string   // default of orderBy
	named    bool     // PATCH wants the name in the body
	reads    request.Permission
	writes   request.Permission
	public   func(*S) bool // may be read from any account
	hidden   func(*S) bool // listed only with showDeleted
	deletes  bool          // list has showDeleted
	unsifted bool          // list takes filter and orderBy and does not use them
	imagines bool          // create has validateOnly

	givenID func(given *R) string
	// ask and askUpdate read further query parameters of create and update;
	// asks, asksUpdate and asksRemove declare them.
	ask, askUpdate               func(p *request.Params, given *R)
	asks, asksUpdate, asksRemove []request.Parameter
	render                       func(v *projections.View, row *projections.Row[S], out *R)
	// local adds what depends on this server's own settings.
	local func(c *call, row *projections.Row[S], out *R)
	// prepare looks at what a create or update asks: references, values to seal.
	prepare func(c *call, name domain.Name, given *R, extra map[string]string, v *domain.Violations) error
	create  func(c *call, name domain.Name, given *R) domain.Command[S]
	// update is called with the state as it then is, merged what it becomes,
	// and given what the body says.
	update func(old S, merged, given *R, changed wire.Mask) (domain.Command[S], error)
	remove func(c *call, row *projections.Row[S], p *request.Params) (domain.Command[S], error)
	// addGiven adds what only the answer to this create or update shows, and
	// warns of what it does not do.
	addGiven func(c *call, given, out *R)
	// after tells this server of a delete. What else the resource leaves is the
	// reconciler's to delete.
	after func(c *call, row *projections.Row[S])

	fields *query.Fields[R]
}

// readsHistory is what reading a resource's events takes: whoever may only
// look at models is not told who did what to them.
func (res *resource[S, R]) readsHistory() request.Permission {
	if res.reads == request.ReadModels {
		return request.Read
	}
	return res.reads
}

func (res *resource[S, R]) table(v *projections.View) *projections.Table[S] {
	return projections.TableOf(v, res.kind)
}

// row is the resource that the path names.
func (res *resource[S, R]) row(c *call) (*projections.Row[S], error) {
	name := domain.NewName(c.Account, res.kind.Collection, c.PathValue("id"))
	if row, ok := res.table(c.View()).Get(name); ok {
		return row, nil
	}
	made, err := c.Recorded(name) // an earlier try of the call found it, and others have deleted it since
	switch {
	case err != nil:
		return nil, err
	case made.Position() == 0:
		return nil, request.NotFound(res.noun, name)
	}
	return res.changed(c, made)
}

// changed is the row as the call's own event left it, whatever other clients
// have done to the resource since.
func (res *resource[S, R]) changed(c *call, change eventlog.Change) (*projections.Row[S], error) {
	after, err := change.After(c.World)
	if err != nil {
		return nil, err
	}
	state, _ := after.State.(S)
	return &projections.Row[S]{Name: change.Name, State: state, CreateTime: after.CreateTime, CreateEvent: after.CreateEvent, UpdateTime: after.UpdateTime, Version: after.Version}, nil
}

// reply renders the resource as the call's own event left it.
func (res *resource[S, R]) reply(c *call, change eventlog.Change) (*R, error) {
	row, err := res.changed(c, change)
	if err != nil {
		return nil, err
	}
	return res.wire(c, row), nil
}

// wire is the row as the collection answers it.
func (res *resource[S, R]) wire(c *call, row *projections.Row[S]) *R {
	out := new(R)
	res.show(c, row, out)
	return out
}

// show renders a row as this server answers it.
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
	m, _ := wire.ParseMask(&p.Violations, "readMask", reflect.TypeFor[R](), p.Texts("readMask"), false)
	if err := p.Err(); err != nil {
		return nil, err
	}
	row, err := res.row(c)
	if err != nil {
		return nil, err
	}
	out := new(R)
	res.show(c, row, out)
	return m.Project(out)
}

// publicAccount owns what the installation ships for everybody.
const publicAccount = "default"

// mayRead decides for a resource that may be public; id is "" for a list,
// which an account other than its own may see of the public account only.
func (res *resource[S, R]) mayRead(c *call, id string) error { return res.open(c, id, res.reads) }

// open is mayRead for whoever has another permission.
func (res *resource[S, R]) open(c *call, id string, what request.Permission) error {
	err := c.Principal.Authorize(c.Account, what)
	if err == nil || res.public == nil || c.Principal.Account == c.Account || c.Principal.Require(what) != nil {
		return err
	}
	if id == "" && c.Account == publicAccount {
		return nil
	}
	row, ok := res.table(c.View()).Get(domain.NewName(c.Account, res.kind.Collection, id))
	if ok && res.public(&row.State) {
		return nil
	}
	return err
}

func (res *resource[S, R]) post(c *call) (any, error) {
	p := c.Params()
	given, name, extra, err := res.readCreate(c, p)
	if err != nil {
		return nil, err
	}
	imagined := res.imagines && p.Flag("validateOnly")
	if res.ask != nil {
		res.ask(p, given)
	}
	made, err := c.Recorded(name)
	if err != nil {
		return nil, err
	}
	if res.prepare != nil {
		if err := res.prepare(c, name, given, extra, &p.Violations); err != nil && made.Position() == 0 {
			return nil, err
		}
	}
	intent := domain.Intend(res.kind, name, res.create(c, name, given))
	if err := refused(c, intent, p, res.prefixed); err != nil && made.Position() == 0 {
		return nil, err
	}
	if imagined {
		return res.imagine(c, intent, given)
	}
	result, err := c.Do(intent)
	if err != nil {
		return nil, res.prefixed(err)
	}
	out, err := res.reply(c, result)
	if err == nil && res.addGiven != nil {
		res.addGiven(c, given, out)
	}
	return out, err
}

// readCreate reads the body and the ID of a create. What is wrong goes to p,
// so that it is told together with what the decision finds.
func (res *resource[S, R]) readCreate(c *call, p *request.Params) (given *R, name domain.Name, extra map[string]string, err error) {
	id := ""
	if res.wrapper == "" && res.idParam != "" {
		id = p.Text(res.idParam)
	}
	value, err := request.ReadBody(c.Call, res.wrapper != "")
	if err != nil {
		return nil, "", nil, err
	}
	given, extra = new(R), map[string]string{}
	var b wire.Body
	if res.wrapper == "" {
		b = wire.Normalize(&p.Violations, reflect.TypeFor[R](), value)
	} else {
		outer := wire.Normalize(&p.Violations, res.envelope(), value)
		b, _ = outer[res.wrapper].(map[string]any)
		id, _ = outer[res.idParam].(string)
		for _, name := range res.extra {
			extra[name], _ = outer[name].(string)
		}
	}
	if err := b.Fill(given); err != nil {
		return nil, "", nil, err
	}
	if res.givenID != nil {
		id = res.givenID(given)
	}
	if id == "" && res.givenID == nil {
		id = strings.ToLower(res.noun[:1]) + c.NewUUID("ID") // IDs begin with a letter
	}
	idField := res.idParam
	if idField == "" {
		idField = "name"
	}
	p.Violations.Require(domain.ValidID(id), idField, "%s", domain.IDRule)
	return given, domain.NewName(c.Account, res.kind.Collection, id), extra, nil
}

// envelope is the type of a create's body: {dataset: {…}, datasetId: "…"}, or
// the resource itself.
func (res *resource[S, R]) envelope() reflect.Type {
	if res.wrapper == "" {
		return reflect.TypeFor[R]()
	}
	fields := []reflect.StructField{wire.StructField("Resource", res.wrapper, reflect.TypeFor[R]()), wire.StructField("ID", res.idParam, reflect.TypeFor[string]())}
	for i, name := range res.extra {
		fields = append(fields, wire.StructField(fmt.Sprintf("Extra%d", i), name, reflect.TypeFor[string]()))
	}
	return reflect.StructOf(fields)
}

// refused asks the decision what else is wrong, when something already is: a
// request is told all of its faults at once, in the words of the body.
func refused(c *call, intent domain.Intent, p *request.Params, told func(error) error) error {
	err := p.Err()
	if err == nil {
		return nil
	}
	state, _ := c.World.Row(intent.Name)
	var more *domain.Error
	if _, decided := intent.Decide(state, c.Time); errors.As(told(decided), &more) && more.Code == domain.InvalidArgument {
		for _, one := range more.Violations {
			known := slices.ContainsFunc(p.Violations, func(v domain.Violation) bool { return v.Field == one.Field })
			if !known {
				p.Violations = append(p.Violations, one)
			}
		}
	}
	return p.Violations.Err()
}

// prefixed puts the wrapper's name before the fields of a fault.
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

// imagine answers what would be created, and creates nothing.
func (res *resource[S, R]) imagine(c *call, intent domain.Intent, given *R) (any, error) {
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
	if res.addGiven != nil {
		res.addGiven(c, given, out)
	}
	return out, nil
}

func (res *resource[S, R]) patch(c *call) (any, error) {
	p := c.Params()
	t := reflect.TypeFor[R]()
	value, err := request.ReadBody(c.Call, false)
	if err != nil {
		return nil, err
	}
	b := wire.Normalize(&p.Violations, t, value)
	m, all := wire.ParseMask(&p.Violations, "updateMask", t, p.Texts("updateMask"), true)
	switch {
	case all && len(p.Values["updateMask"]) > 0:
		m = res.everything()
	case all:
		m = wire.Present(t, b)
	}
	row, err := res.row(c)
	if err != nil {
		return nil, err
	}
	res.checkName(p, value, row.Name)
	given := new(R)
	if err := wire.Body(m.Merge(nil, b)).Fill(given); err != nil { // only what the mask names
		return nil, err
	}
	if res.askUpdate != nil {
		res.askUpdate(p, given)
	}
	made, err := c.Recorded(row.Name)
	if err != nil {
		return nil, err
	}
	if res.prepare != nil {
		if err := res.prepare(c, row.Name, given, nil, &p.Violations); err != nil && made.Position() == 0 {
			return nil, err
		}
	}
	intent := domain.Intend(res.kind, row.Name, domain.Command[S](change[S, R]{res, row.Name, b, given, m}))
	if err := refused(c, intent, p, func(err error) error { return err }); err != nil && made.Position() == 0 {
		return nil, err
	}
	result, err := c.Do(intent)
	if err != nil {
		return nil, err
	}
	out, err := res.reply(c, result)
	if err == nil && res.addGiven != nil {
		res.addGiven(c, given, out)
	}
	return out, err
}

// checkName wants the name in the body to be that of the path.
func (res *resource[S, R]) checkName(p *request.Params, value any, name domain.Name) {
	object, _ := value.(map[string]any)
	given, ok := object["name"]
	switch {
	case ok && given != string(name):
		p.Violations.Add("name", "must be the name in the path, %s", name)
	case !ok && res.named:
		p.Violations.Add("name", "is required here: %s", name)
	}
}

// everything is the mask of all that a request may set.
func (res *resource[S, R]) everything() wire.Mask {
	m := wire.Mask{}
	for _, f := range wire.StructOf(reflect.TypeFor[R]()).Fields {
		if !f.Output {
			m[f.Name] = wire.Mask{}
		}
	}
	return m
}

// A change is an update that is worked out anew on the state that it meets,
// so that what somebody else changed meanwhile stays.
type change[S domain.State, R any] struct {
	res   *resource[S, R]
	name  domain.Name
	body  wire.Body
	given *R
	mask  wire.Mask
}

func (ch change[S, R]) Decide(state S, now time.Time) (domain.Event[S], error) {
	if !state.Exists() {
		return nil, request.NotFound(ch.res.noun, ch.name)
	}
	var rendered, merged R
	ch.res.render(nil, &projections.Row[S]{Name: ch.name, State: state}, &rendered)
	data, err := json.Marshal(rendered)
	if err != nil {
		return nil, err
	}
	old, err := wire.Parse(data)
	if err != nil {
		return nil, err
	}
	before := wire.NormalizeStored(reflect.TypeFor[R](), old)
	if err := wire.Body(ch.mask.Merge(before, ch.body)).Fill(&merged); err != nil {
		return nil, err
	}
	command, err := ch.res.update(state, &merged, ch.given, ch.mask)
	if err != nil {
		return nil, err
	}
	return command.Decide(state, now)
}

func (res *resource[S, R]) delete(c *call) (any, error) {
	row, err := res.row(c)
	if err != nil {
		return nil, err
	}
	p := c.Params()
	command, err := res.remove(c, row, p)
	if err == nil {
		err = p.Err()
	}
	if err == nil {
		err = res.removes(c, row, command)
	}
	if err != nil {
		return nil, err
	}
	if res.after != nil {
		res.after(c, row)
	}
	return request.Empty, nil
}

// command makes a handler of a verb that carries no settings.
func (res *resource[S, R]) verb(h func(c *call, row *projections.Row[S]) (any, error)) handler {
	return func(c *call) (any, error) {
		if err := c.Params().Err(); err != nil {
			return nil, err
		}
		if c.Operation.Method != http.MethodGet {
			if err := readVerb(c, &struct{}{}); err != nil {
				return nil, err
			}
		}
		row, err := res.row(c)
		if err != nil {
			return nil, err
		}
		return h(c, row)
	}
}

// readVerb reads the body of a custom verb into out, a pointer to the type that
// its operation declares; no body at all is an empty one.
func readVerb(c *call, out any) error {
	var v domain.Violations
	if err := readVerbWith(c, &v, out); err != nil {
		return err
	}
	return v.Err()
}

// readVerbWith is readVerb for an operation that tells what is wrong with the
// body, which goes to v, together with what else it finds.
func readVerbWith(c *call, v *domain.Violations, out any) error {
	if wire.Deref(reflect.TypeOf(out)) != c.Operation.Body {
		panic("api: " + c.Operation.ID + " reads another body than it declares")
	}
	value, err := request.ReadBody(c.Call, true)
	if err != nil {
		return err
	}
	return wire.Normalize(v, reflect.TypeOf(out), value).Fill(out)
}
