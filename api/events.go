package api

import (
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// historyOf completes an operation that answers events.
func historyOf(op request.Operation) request.Operation {
	op.Description = "Asked with Accept: text/event-stream, it sends events as they happen, each a server-sent event whose ID is its position; of the query it then takes the filter alone."
	op.Query, op.Response, op.Streamed = request.ListParameters, request.PageType("events", reflect.TypeFor[Event]()), reflect.TypeFor[Event]()
	op.Headers = []request.Parameter{{Name: "Last-Event-ID", Kind: wire.Text, Description: "For a stream: the position of the last event that the client has; 0 begins with the first, without it the stream begins now."}}
	return op
}

// Event is what filters, orders and masks may name of an event; the answer is
// the CloudEvent itself, in structured JSON with its position.
type Event struct {
	SpecVersion string          `json:"specversion"`
	ID          string          `json:"id"`
	Type        string          `json:"type"`
	Source      string          `json:"source"`
	Subject     string          `json:"subject"`
	Time        time.Time       `json:"time"`
	ContentType string          `json:"datacontenttype"`
	Position    domain.Count    `json:"position"`
	Actor       string          `json:"actor"`
	Command     string          `json:"command"`
	Cause       string          `json:"cause"`
	Correlation string          `json:"correlation"`
	Attempt     string          `json:"attempt,omitempty" query:"-"`
	State       string          `json:"state,omitempty" query:"-"`
	Data        json.RawMessage `json:"data" query:"-"`
}

var eventFields = fieldsOf[Event]()

// recorded is an event as a row of a list.
type recorded struct{ eventlog.Event }

// Exists implements domain.State.
func (recorded) Exists() bool { return true }

func renderEvent(row *projections.Row[recorded], out *Event) {
	e := &row.State.Event
	*out = Event{ID: e.ID, Type: e.Type, Subject: string(e.Name), Time: e.Time, Position: domain.Count(e.Position),
		Actor: e.Actor, Command: e.Command, Cause: e.Cause, Correlation: e.Correlation}
}

// history is a part of the log that a caller may see.
type history struct {
	filter string            // of the log
	hidden []string          // collections of those that the caller may not see
	wants  func(*Event) bool // of those, the request
}

func (h history) shows(e eventlog.Event) bool { return !slices.Contains(h.hidden, e.Name.Collection()) }

func (h history) matches(e eventlog.Event) bool {
	if !h.shows(e) {
		return false
	}
	var seen Event
	renderEvent(&projections.Row[recorded]{State: recorded{e}}, &seen)
	return h.wants(&seen)
}

func eventOperations(s *Server) []request.Operation {
	return []request.Operation{
		historyOf(request.Operation{ID: "listAllEvents", Method: "GET", Path: "/v1/events", Tag: "events", Summary: "List the events of all accounts", Gate: request.ByOperator,
			Handle: s.handle(func(c *call) (any, error) { return c.events("events.>") })}),
		historyOf(request.Operation{ID: "listAccountEvents", Method: "GET", Path: "/v1/accounts/{account}/events", Tag: "events", Summary: "List the events of an account", Permission: request.FollowEvents,
			Handle: s.handle(func(c *call) (any, error) { return c.events("events." + c.Account + ".>") })}),
	}
}

// events is the handler of a resource's history, which outlives the resource.
func (res *resource[S, R]) events(c *call) (any, error) {
	name := domain.NewName(c.Account, res.kind.Collection, c.PathValue("id"))
	if _, version := c.World.Row(name); version == 0 || !domain.ValidID(name.ID()) {
		return nil, request.NotFound(res.noun, name)
	}
	return c.events(name.Subject())
}

// events answers a part of the log: page by page, or live as server-sent
// events when the client asks for text/event-stream.
func (c *call) events(filter string) (any, error) {
	h := history{filter: filter}
	if c.Principal.Require(request.ManageSecrets) != nil {
		h.hidden = []string{domain.APIKeys.Collection, domain.Secrets.Collection}
	}
	p := c.Params()
	if wantsStream(c.Request) {
		return nil, c.streamEvents(p, h)
	}
	return c.listEvents(p, h)
}

func wantsStream(r *http.Request) bool {
	if r.Method != http.MethodGet { // a HEAD would hold a stream open that shows nothing
		return false
	}
	for _, accepted := range strings.Split(r.Header.Get("Accept"), ",") {
		if kind, _, err := mime.ParseMediaType(accepted); err == nil && kind == "text/event-stream" {
			return true
		}
	}
	return false
}

// streamEvents sends events as they happen, from where the client left off:
// Last-Event-ID is the position of the last one that it has, 0 begins with the
// first event of all, and without it the stream begins now.
func (c *call) streamEvents(p *request.Params, h history) error {
	wants, err := eventFields.Filter(p.Text("filter"))
	h.wants = wants
	after, ok := c.resumeAfter(&p.Violations)
	if err := request.JoinErrors(p.Err(), err); err != nil {
		return err
	}
	if !ok {
		after = c.World.Position()
	}
	leave, ok := c.server.busy.Enter("streams of "+c.Principal.Account, c.server.Limits.Streams)
	if !ok {
		return &domain.Error{Code: domain.ResourceExhausted, Reason: request.ReasonTooManyStreams,
			Message: fmt.Sprintf("accounts/%s has %d streams of events open: close one first", c.Principal.Account, c.server.Limits.Streams)}
	}
	defer leave()
	c.server.tail.start(c.World.Position())
	c.Writer.Header().Set("Content-Type", "text/event-stream")
	c.Writer.Header().Set("Cache-Control", "no-store")
	c.Writer.Header().Set("X-Accel-Buffering", "no") // a proxy must not hold the stream back
	c.Writer.WriteHeader(http.StatusOK)
	stream := &eventStream{call: c, history: h, after: after, flush: http.NewResponseController(c.Writer).Flush}
	if err := stream.run(); err != nil && c.Ctx.Err() == nil {
		c.Logger.Warn("a stream of events broke off", "request", c.ID, "error", err)
	}
	return nil
}

// resumeAfter reads Last-Event-ID. A stream may be a moment ahead of the world.
func (c *call) resumeAfter(v *domain.Violations) (position uint64, given bool) {
	text := c.Request.Header.Get("Last-Event-ID")
	if text == "" {
		return 0, false
	}
	position, err := strconv.ParseUint(text, 10, 64)
	if err == nil {
		ctx, cancel := context.WithTimeout(c.Ctx, resumeTime)
		err = c.World.WaitFor(ctx, position)
		cancel()
	}
	if err != nil {
		v.Add("Last-Event-ID", "must be the position of an event, at most %d; 0 begins with the first", c.World.Position())
	}
	return position, true
}

// resumeTime is how long a stream waits for the event that its client says it
// has already.
const resumeTime = 200 * time.Millisecond

// An eventStream is one client's live view of a history.
type eventStream struct {
	*call
	history
	after uint64
	flush func() error
}

func (s *eventStream) run() error {
	heartbeat := time.NewTicker(s.server.Limits.Heartbeat)
	defer heartbeat.Stop()
	if err := s.comment("connected"); err != nil {
		return err
	}
	for {
		events, at, complete, grown := s.server.tail.since(s.after)
		if !complete {
			if err := s.catchUp(at); err != nil {
				return err
			}
			continue
		}
		if len(events) > 0 && !s.stillAllowed() {
			return nil
		}
		for _, e := range events {
			if err := s.send(e); err != nil {
				return err
			}
		}
		if err := s.flush(); err != nil {
			return err
		}
		select {
		case <-grown:
		case <-heartbeat.C:
			if !s.stillAllowed() {
				return nil
			}
			if err := s.comment("still here"); err != nil {
				return err
			}
		case <-s.Ctx.Done():
			return s.Ctx.Err()
		case <-s.server.tail.ctx.Done():
			return nil
		}
	}
}

// catchUp sends what the log holds up to a position.
func (s *eventStream) catchUp(at uint64) error {
	for e, err := range s.Log.Read(s.Ctx, s.filter, s.after) {
		if err != nil {
			return err
		}
		if err := s.send(e); err != nil {
			return err
		}
	}
	s.after = max(s.after, at) // what lies in between is not of this history
	return s.flush()
}

func (s *eventStream) send(e eventlog.Event) error {
	s.after = e.Position
	if !subjectMatches(s.filter, e.Name.Subject()) || !s.matches(e) {
		return nil
	}
	data, err := json.Marshal(eventlog.Structured(shown(e)))
	if err == nil {
		_, err = fmt.Fprintf(s.Writer, "id: %d\ndata: %s\n\n", e.Position, data)
	}
	return err
}

// comment says that the stream lives, and how far it is: a client that comes
// back need not read again what was not for it.
func (s *eventStream) comment(text string) error {
	if _, err := fmt.Fprintf(s.Writer, ": %s\nid: %d\n\n", text, s.after); err != nil {
		return err
	}
	return s.flush()
}

// stillAllowed tells whether the key that opened the stream is still good.
func (s *eventStream) stillAllowed() bool {
	state, _ := s.World.Row(s.Principal.Key)
	key, _ := state.(domain.APIKey)
	return key.Exists() && !key.Expired(s.Now())
}

// subjectMatches tells whether a subject falls under an exact filter or one
// that ends in ">".
func subjectMatches(filter, subject string) bool {
	prefix, open := strings.CutSuffix(filter, ">")
	return subject == filter || open && strings.HasPrefix(subject, prefix)
}
