// Package request is what every operation of the interface works with: the principal, the declaration
// of operations, parameters and bodies, changes with their quotas, errors as HTTP responses, and
// idempotency keys.
package request

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// UsableModel returns a model that the account may use: its own or a public one. It does not
// distinguish between a model that does not exist and one that the account may not see.
func (c *Call) UsableModel(account, name string) (*projections.Row[domain.Model], bool) {
	row, ok := c.View().Models.Get(domain.Name(name))
	if !ok || row.Name.Account() != account && !row.State.Public {
		return nil, false
	}
	return row, true
}

// Core is what every request works with.
type Core struct {
	Log        eventlog.Log
	World      *projections.World
	Answers    Answers
	Uses       Uses // nil keeps in memory when keys were used
	Logger     *slog.Logger
	Pepper     []byte // hashes keys and signs page tokens
	Now        func() time.Time
	Space      *disk.Space   // of the server's disk; nil is not watched
	MaxBody    int64         // bytes of a JSON body
	RepeatWait time.Duration // how long a repeated request waits for the response to the first

	rates      *rates
	guard      guard
	background sync.WaitGroup // what no response waits for
}

// NewCore completes a core in place and returns it.
func NewCore(c *Core) *Core {
	c.rates = newRates()
	return c
}

// Drain returns when nothing continues in the background any more.
func (c *Core) Drain() { c.background.Wait() }

// A Call is one request while it is handled.
type Call struct {
	*Core
	Operation *Operation
	Conn      Connection
	Writer    http.ResponseWriter
	Request   *http.Request
	Ctx       context.Context
	ID        string    // of the request
	Time      time.Time // at which it began
	Principal Principal
	Account   string      // of the path
	Direct    domain.Name // the deployment whose direct route the call took; "" is none
	view      *projections.View

	seed     []byte // of generated IDs and keys, when the request has an idempotency key
	repeated bool   // an earlier attempt of the request may have recorded something
	commands int    // recorded so far
}

// A Connection reads the body of a request within the limits of the HTTP connection.
type Connection interface {
	// ReadBody reads the whole body into memory: at most limit bytes.
	ReadBody(r *http.Request, limit int64) ([]byte, error)
	// ReleaseBody releases what decoding the body took; its texts stay in use.
	ReleaseBody()
	// Identify records whose request it is.
	Identify(account string)
}

// A Handler returns the value of a JSON response, or nil when it has written the response.
type Handler func(c *Call) (any, error)

// PathValue returns a parameter of the path.
func (c *Call) PathValue(name string) string { return chi.URLParam(c.Request, name) }

// View returns the world at one position, the same until Refresh or a change of the call.
func (c *Call) View() *projections.View {
	if c.view == nil {
		c.view = c.World.View()
	}
	return c.view
}

// Refresh makes the next View return the current world.
func (c *Call) Refresh() { c.view = nil }

// HasIdempotencyKey reports whether the request has an idempotency key.
func (c *Call) HasIdempotencyKey() bool { return c.seed != nil }

// writeTime bounds a change, which continues when its client has disconnected: a part of it may be
// recorded.
const writeTime = 15 * time.Second

// Detached returns a context for a change: it is not canceled when the client disconnects.
func (c *Call) Detached() (ctx context.Context, cancel context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.Ctx), writeTime)
}

// Do records an intent and returns the change, after the world has reached it: a client reads its
// own writes.
func (c *Call) Do(intent domain.Intent) (eventlog.Change, error) {
	made, err := c.Recorded(intent.Name) // by an earlier attempt
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

// Record is Do for concurrent use; it does not look for earlier attempts.
func (c *Call) Record(intent domain.Intent) error {
	_, err := c.command("", intent)
	return err
}

// command records the intent under a command ID; "" generates one.
func (c *Call) command(id string, intent domain.Intent) (eventlog.Change, error) {
	if err := c.mayUse(intent); err != nil {
		return eventlog.Change{}, err
	}
	leave, err := quotaCheck{c}.admit([]domain.Intent{intent})
	if err != nil {
		return eventlog.Change{}, err
	}
	defer leave()
	ctx, cancel := c.Detached()
	defer cancel()
	request := eventlog.Request{Time: c.Time, Actor: string(c.Principal.Key), Command: id, Correlation: c.ID}
	change, err := eventlog.Do(ctx, c.Log, c.World, request, intent)
	if err == nil {
		err = c.World.WaitFor(ctx, change.Position())
	}
	var fault *domain.Error
	if err == nil || errors.As(err, &fault) {
		return change, err
	}
	c.Logger.Error("a change was not recorded", "request", c.ID, "change", intent.Name, "error", err)
	return change, unrecorded{err}
}

// unrecorded is the error of a change that the log did not acknowledge.
type unrecorded struct{ cause error }

func (u unrecorded) Error() string { return u.cause.Error() }

func (u unrecorded) Unwrap() error { return u.cause }

// Warn adds a warning to the response: a setting is accepted, but without the effect that a client
// may expect.
func (c *Call) Warn(format string, args ...any) {
	c.Writer.Header().Add("anneal-warning", fmt.Sprintf(format, args...))
}

// RequireActive returns an error when an account is suspended.
func (c *Call) RequireActive(account string) error {
	row, ok := c.View().Accounts.Get(domain.NewName(account, "accounts", account))
	if ok && row.State.Suspended() {
		return Suspended(account, row.State)
	}
	return nil
}

func Suspended(account string, a domain.Account) error {
	f := domain.Errorf(domain.FailedPrecondition, "accounts/%s is suspended (%s): it may read, delete, cancel and scale down, but change nothing else and ask no models, until its operator restores it", account, a.SuspendState)
	f.Reason = reasonSuspended
	return f
}

func parentPath(name domain.Name) string {
	if name.Collection() == "accounts" {
		return "accounts"
	}
	return "accounts/" + name.Account() + "/" + name.Collection()
}

type RequestIDKey struct{}

const RequestIDHeader = "X-Request-Id"

func RequestID(r *http.Request) string {
	id, _ := r.Context().Value(RequestIDKey{}).(string)
	return id
}

// mayUse refuses a change by which a resource begins to use one that is being deleted. Races that
// it does not see are resolved by the order of the log: schedulers fail work whose inputs are gone.
func (c *Call) mayUse(intent domain.Intent) error {
	if !c.World.View().UsesOthers(intent.Name.Collection()) {
		return nil
	}
	before, _ := c.World.Row(intent.Name)
	record, err := intent.Decide(before, c.Time)
	if err != nil || record.Type == "" {
		return nil // returned when it is recorded
	}
	after, err := c.World.After(intent.Name, before, record)
	if err != nil {
		return err
	}
	for _, used := range c.World.View().Leaving(intent.Name, before, after, c.Time) {
		f := domain.Errorf(domain.FailedPrecondition, "%s is being deleted: name another, or try again when its deletion was refused", used)
		f.Reason = "BEING_DELETED"
		return f
	}
	return nil
}
