// Package request contains what all operations of the HTTP API share: the declaration of
// operations, their parameters and bodies; the caller and its permissions; the recording of changes
// within quotas; errors as HTTP responses; and idempotency keys.
package request

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// UsableModel returns a model that the account may use: its own or a public one. It returns false
// both for a model that does not exist and for a model that the account may not see.
func (c *Call) UsableModel(account, name string) (*projections.Row[domain.Model], bool) {
	row, ok := c.View().Models.Get(domain.Name(name))
	if !ok || row.Name.Account() != account && !row.State.Public {
		return nil, false
	}
	return row, true
}

// Core holds the dependencies and the state that all requests of a server share.
type Core struct {
	Log         eventlog.Log
	World       *projections.World
	Idempotency IdempotencyStore
	LastUsed    LastUsedStore // stores when each API key was last used; nil stores the times in memory only
	Logger      *slog.Logger
	Tokens      Tokens // verifies ID tokens; nil refuses them
	Pepper      []byte // secret key of the HMACs of API keys and page tokens
	Now         func() time.Time
	Space       *disk.Space // checks the space on the server's disk; nil disables the check
	Limits      Limits
	Busy        *Counters       // counts requests in progress by key, such as an account or a replica
	Closing     context.Context // is done when the server stops
	// Addresses states whether events contain the IP address of the client.
	Addresses bool

	rates      *rates
	quotas     locks          // key: account; serializes changes that count against its quotas
	outputs    locks          // key: model name; serializes jobs that reserve an output model
	background sync.WaitGroup // goroutines that no response waits for
}

// NewCore initializes the private fields of c and returns it.
func NewCore(c *Core) *Core {
	c.rates = newRates()
	return c
}

// Drain waits for the goroutines that the function background has started.
func (c *Core) Drain() { c.background.Wait() }

// A Call is one request in progress.
type Call struct {
	*Core
	Operation *Operation
	Conn      Connection
	Writer    http.ResponseWriter
	Request   *http.Request
	Ctx       context.Context
	ID        string // ID of the request
	Trace     domain.Trace
	Time      time.Time // start of the request
	Principal Principal
	Account   string      // account in the path or, for inference, of the principal
	Direct    domain.Name // deployment or trainer job to whose host name the request was sent; "" for the server's own
	// Background states that the request belongs to a batch, so that no client waits for the
	// response.
	Background bool
	Admission  Admission
	view       *projections.View
	identity   *Identity // of the Principal if it is a user; otherwise nil
	reflected  uint64    // value of the response header anneal-position
	counted    bool      // the request was counted against the quota requests-per-minute

	sent     []byte // JSON body; nil if it has more than maxShownBody bytes
	seed     []byte // seed of derived IDs and secrets; nil without an idempotency key
	repeated bool   // an earlier attempt of this request may have recorded changes
	commands int    // number of commands that the call has sent so far
	// invalidAsOf has the violations of the query parameter asOf, which Params adds to the
	// violations of the other parameters.
	invalidAsOf domain.Violations
	recorded    atomic.Bool // the call may have recorded a change
}

// An Admission is what the admission queue of a deployment decided on a call, whose parts all get
// the same decision. An attempt on the candidate of a release has a call of its own.
type Admission struct {
	mu   sync.Mutex
	made bool
	err  error
}

// Decide returns the error of the call's first Decide, or that of decide if it is the first one.
func (a *Admission) Decide(decide func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.made {
		a.made, a.err = true, decide()
	}
	return a.err
}

// A Connection reads the body of a request, within the limits on the memory and the time of bodies.
type Connection interface {
	// ReadBody returns the body, or an error if it has more than limit bytes.
	ReadBody(r *http.Request, limit int64) ([]byte, error)
	// ReleaseBody releases the memory that the server's budget reserved to decode the body. The
	// reservation for the body's strings remains until the request ends.
	ReleaseBody()
	// Identify sets the account of the request. The memory of the body then counts against the
	// account's share of the budget.
	Identify(account string)
}

// A Handler returns the value of a JSON response, or nil when it has written the response.
type Handler func(c *Call) (any, error)

// PathValue returns the value of a parameter of the path, such as id.
func (c *Call) PathValue(name string) string {
	if !c.Operation.Slashes || !strings.HasSuffix(c.Operation.Path, "{"+name+"}") {
		return chi.URLParam(c.Request, name)
	}
	value := chi.URLParam(c.Request, "*") // percent-encoded as in the request
	if decoded, err := url.PathUnescape(value); err == nil && c.Request.URL.RawPath != "" {
		return decoded
	}
	return value
}

// SetPathValue sets the value of a path parameter that the route does not have.
func (c *Call) SetPathValue(name, value string) {
	chi.RouteContext(c.Request.Context()).URLParams.Add(name, value)
}

// View returns the world at one position. It returns the same View until the call records a change
// or Refresh is called.
func (c *Call) View() *projections.View {
	if c.view == nil {
		c.view = c.World.View()
		Reflect(c, c.view.Position)
	}
	return c.view
}

// Refresh makes the next View return the current world.
func (c *Call) Refresh() { c.view = nil }

// HasIdempotencyKey reports whether the request was sent with an idempotency key.
func (c *Call) HasIdempotencyKey() bool { return c.seed != nil }

// writeTime bounds the time to record a change. Recording continues after the client has
// disconnected, because the log may already contain some events of the change.
const writeTime = 15 * time.Second

// Detached returns a context for recording a change. The context is not canceled when the client
// disconnects, and its timeout is writeTime.
func (c *Call) Detached() (ctx context.Context, cancel context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.Ctx), writeTime)
}

// Do records an intent, and returns the change when the world has reached it, so that clients read
// their own writes. If an earlier attempt of the request has recorded the change, Do returns that
// change and records nothing.
func (c *Call) Do(intent domain.Intent) (eventlog.Change, error) {
	earlier, err := c.Recorded(intent.Name)
	if err != nil {
		return eventlog.Change{}, err
	}
	command := c.nextCommand()
	c.commands++
	if earlier.Position() > 0 {
		Reflect(c, earlier.Position())
		return earlier, nil
	}
	ctx, cancel := c.Detached()
	defer cancel()
	change, err := c.command(ctx, command, intent)
	if err == nil {
		c.view = nil
		Reflect(c, change.Position())
	}
	return change, err
}

// maxMerges is the maximum number of attempts of Merge to compute and record an intent.
const maxMerges = 64

// Merge is like Do for an intent that is computed from the row of the resource name. merge computes
// the intent. Merge calls it again if the row changed before the intent was recorded, up to
// maxMerges times. All attempts have the same command ID.
func (c *Call) Merge(name domain.Name, merge func() (domain.Intent, error)) (eventlog.Change, error) {
	made, err := c.Recorded(name)
	if err != nil {
		return eventlog.Change{}, err
	}
	command := c.nextCommand()
	c.commands++
	if made.Position() > 0 {
		Reflect(c, made.Position())
		return made, nil
	}
	ctx, cancel := c.Detached()
	defer cancel()
	for attempt := range maxMerges {
		intent, err := merge()
		if err != nil {
			return eventlog.Change{}, err
		}
		change, err := c.command(ctx, command, intent)
		if err == nil {
			c.view = nil
			Reflect(c, change.Position())
		}
		if ReasonOf(err) != domain.ErrStale.Reason {
			return change, err
		}
		c.Refresh()
		if attempt > 1 && !eventlog.Sleep(ctx, rand.N(time.Duration(min(attempt, 16))*time.Millisecond)) {
			return eventlog.Change{}, ctx.Err()
		}
	}
	return eventlog.Change{},
		domain.Errorf(domain.Aborted, "other requests changed %s during each of %d attempts: try again", name,
			maxMerges)
}

// Record records an intent like Do, and may be called concurrently. Unlike Do, it does not check
// whether an earlier attempt of the request has recorded the change.
func (c *Call) Record(intent domain.Intent) error {
	ctx, cancel := c.Detached()
	defer cancel()
	_, err := c.command(ctx, "", intent)
	return err
}

// command records an intent with the command ID id, and waits until the world has reached the
// change. If id is "", the log generates an ID.
func (c *Call) command(ctx context.Context, id string, intent domain.Intent) (eventlog.Change, error) {
	if err := c.mayUse(intent); err != nil {
		return eventlog.Change{}, err
	}
	release, err := reserveOutput(ctx, c, intent)
	if err != nil {
		return eventlog.Change{}, err
	}
	defer release()
	leave, err := quotaCheck{c}.admit(ctx, []domain.Intent{intent})
	if err != nil {
		return eventlog.Change{}, err
	}
	defer leave()
	request := eventlog.Request{Time: c.Time, Actor: string(c.Principal.Key), Command: id, Correlation: c.ID,
		Trace: c.Trace}
	if c.Addresses {
		request.ClientAddress = ClientAddress(c.Request)
	}
	change, err := eventlog.Do(ctx, c.Log, c.World, request, intent)
	if err == nil {
		err = c.World.WaitFor(ctx, change.Position())
	}
	var fault *domain.Error
	rejected := errors.As(err, &fault)
	if !rejected {
		c.recorded.Store(true)
	}
	if err == nil || rejected {
		return change, err
	}
	c.Logger.Error("a change was not recorded, or its outcome is "+
		"unknown", "request", c.ID, "change", intent.Name, "error", err)
	return change, unrecorded{err}
}

// unrecorded is the error of an intent whose append to the log failed or was not acknowledged, so
// that the change may be recorded or not.
type unrecorded struct{ cause error }

func (u unrecorded) Error() string { return u.cause.Error() }

func (u unrecorded) Unwrap() error { return u.cause }

// NodeMask returns what replaces the names of nodes in the response; nil if the caller may see
// them.
func NodeMask(c *Call) *domain.NodeMask {
	if c.Principal.SeesNodes() {
		return nil
	}
	return &domain.NodeMask{Key: c.Pepper}
}

// ShowNode returns the ID of a node or, if the caller may not see it, the label of the node.
func ShowNode(c *Call, node domain.Name) string {
	if mask := NodeMask(c); mask != nil {
		return mask.Label(node.ID())
	}
	return node.ID()
}

// WarningHeader carries the warnings of a response.
const WarningHeader = "anneal-warning"

// Warn adds a warning header to the response, unless the response has the same warning already. A
// warning says that the request is accepted, but a setting does not have the effect that a client
// may expect.
func (c *Call) Warn(format string, args ...any) {
	warning, header := fmt.Sprintf(format, args...), c.Writer.Header()
	if !slices.Contains(header.Values(WarningHeader), warning) {
		header.Add(WarningHeader, warning)
	}
}

// RequireActive returns an error if an account is suspended.
func (c *Call) RequireActive(account string) error {
	row, ok := c.View().Accounts.Get(domain.NewName(account, "accounts", account))
	if ok && row.State.Suspended() {
		return Suspended(account, row.State)
	}
	return nil
}

func Suspended(account string, a domain.Account) error {
	f := domain.Errorf(domain.FailedPrecondition,
		"accounts/%s is suspended (%s): only read, delete, cancel and scale-down requests are allowed until the operator "+
			"of the installation restores the account", account, a.SuspendState)
	f.Reason = reasonSuspended
	return f
}

func parentPath(name domain.Name) string {
	return string(name[:max(strings.LastIndexByte(string(name), '/'), 0)])
}

type RequestIDKey struct{}

const RequestIDHeader = "X-Request-Id"

// TraceParentHeader and TraceStateHeader carry the trace context of a request: see domain.Trace.
const (
	TraceParentHeader = "Traceparent"
	TraceStateHeader  = "Tracestate"
)

// TraceOf returns the trace context in the headers of a request: see domain.ParseTrace.
func TraceOf(r *http.Request) domain.Trace {
	return domain.ParseTrace(r.Header[TraceParentHeader], r.Header[TraceStateHeader])
}

func RequestID(r *http.Request) string {
	id, _ := r.Context().Value(RequestIDKey{}).(string)
	return id
}

// mayUse returns an error if an intent adds a reference to a resource that is being deleted. It
// cannot detect a deletion that is recorded at the same time: then a scheduler fails the job whose
// input was deleted.
func (c *Call) mayUse(intent domain.Intent) error {
	if !c.World.View().RefersToOthers(intent.Name.Collection()) {
		return nil
	}
	before, version := c.World.Row(intent.Name)
	if intent.IsStale(version) {
		return nil // the row has changed, so Merge will compute the intent again
	}
	record, err := intent.Decide(before, c.Time)
	if err != nil || record.Type == "" {
		return nil // Decide returns the same error when the intent is recorded
	}
	after, err := c.World.After(intent.Name, before, record)
	if err != nil {
		return err
	}
	for _, used := range c.World.View().BeingDeleted(intent.Name, before, after, c.Time) {
		f := domain.Errorf(domain.FailedPrecondition,
			"%s is being deleted: use another resource, or try again if the deletion is rejected", used)
		f.Reason = "BEING_DELETED"
		return f
	}
	return nil
}
