package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// A call is one request on its way through its handler.
type call struct {
	*Server
	op         *operation
	w          http.ResponseWriter
	r          *http.Request
	ctx        context.Context
	id         string // of the request
	now        time.Time
	caller     caller
	account    string      // of the path
	direct     domain.Name // the deployment whose direct route the call took; "" is none
	view       *projections.View
	whichAddon chooseAddon // of a completion that names no addon

	seed     []byte // of what the call makes up, when it has an idempotency key: see once
	repeated bool   // an earlier try of the call may have recorded something
	commands int    // that the call has given so far
}

// A handler answers a call with a value for JSON, or with nil when it has
// written the answer itself.
type handler func(c *call) (any, error)

// path is a parameter of the path.
func (c *call) path(name string) string { return chi.URLParam(c.r, name) }

// snapshot is the world as the call sees it: the same until look is called.
func (c *call) snapshot() *projections.View {
	if c.view == nil {
		c.view = c.World.View()
	}
	return c.view
}

// writeTime bounds a change: it goes on when its client has gone, since half
// of it may be recorded.
const writeTime = 15 * time.Second

// lasting is a context for what belongs to a change: it outlives the client,
// and cancel ends it.
func (c *call) lasting() (ctx context.Context, cancel context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.ctx), writeTime)
}

// do records an intent and returns what it changed, once the world has reached
// it: a client reads its own writes.
func (c *call) do(intent domain.Intent) (eventlog.Change, error) {
	made, err := c.recorded(intent.Name) // by an earlier try of the call
	if err != nil {
		return eventlog.Change{}, err
	}
	command := c.nextCommand()
	c.commands++
	if made.Position() > 0 {
		return made, nil
	}
	change, err := c.command(command, intent)
	if err == nil {
		c.view = nil
	}
	return change, err
}

// record is do without a memory: several goroutines of a call may use it.
func (c *call) record(intent domain.Intent) error {
	_, err := c.command("", intent)
	return err
}

// command records the intent as what a command decides; "" makes it an ID.
func (c *call) command(id string, intent domain.Intent) (eventlog.Change, error) {
	if err := c.mayUse(intent); err != nil {
		return eventlog.Change{}, err
	}
	leave, err := c.withinQuotas([]domain.Intent{intent})
	if err != nil {
		return eventlog.Change{}, err
	}
	defer leave()
	ctx, cancel := c.lasting()
	defer cancel()
	request := eventlog.Request{Time: c.now, Actor: string(c.caller.key), Command: id, Correlation: c.id}
	change, err := eventlog.Do(ctx, c.Log, c.World, request, intent)
	if err == nil {
		err = c.World.WaitFor(ctx, change.Position())
	}
	var fault *domain.Error
	if err == nil || errors.As(err, &fault) {
		return change, err
	}
	c.Logger.Error("a change was not recorded", "request", c.id, "change", intent.Name, "error", err)
	return change, unrecorded{err}
}

// unrecorded is why the log did not take a change, or did not say so.
type unrecorded struct{ cause error }

func (u unrecorded) Error() string { return u.cause.Error() }

func (u unrecorded) Unwrap() error { return u.cause }

// warn tells the caller of what is accepted and has no effect, or not the one
// that they may expect.
func (c *call) warn(format string, args ...any) {
	c.w.Header().Add("anneal-warning", fmt.Sprintf(format, args...))
}

// mayWork refuses to start work for a suspended account. Its own keys may change
// nothing else either: see admit.
func (c *call) mayWork(account string) error {
	row, ok := c.snapshot().Accounts.Get(domain.NewName(account, "accounts", account))
	if ok && row.State.Suspended() {
		return suspended(account, row.State)
	}
	return nil
}

func suspended(account string, a domain.Account) error {
	f := domain.Errorf(domain.FailedPrecondition, "accounts/%s is suspended (%s): it may read, delete, cancel and scale down, but change nothing else and ask no models, until its operator restores it", account, a.SuspendState)
	f.Reason = reasonSuspended
	return f
}

// usableModel finds a model that the account may use: its own, or a public
// one. What it may not see is as if it were not there.
func (c *call) usableModel(account, name string) (*projections.Row[domain.Model], bool) {
	row, ok := c.snapshot().Models.Get(domain.Name(name))
	if !ok || row.Name.Account() != account && !row.State.Public {
		return nil, false
	}
	return row, true
}

func notFound(noun string, name domain.Name) error {
	f := domain.Errorf(domain.NotFound, "there is no %s named %s: list what there is with GET /v1/%s", noun, name, parentPath(name))
	f.Reason = "NOT_FOUND"
	return f
}

func parentPath(name domain.Name) string {
	if name.Collection() == "accounts" {
		return "accounts"
	}
	return "accounts/" + name.Account() + "/" + name.Collection()
}
