// Package events serves the log: lists of events and live streams of events.
package events

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"anneal/api/openapi"
	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/audit"
	"anneal/projections"
	"anneal/projections/query"
)

// HistoryOf returns a copy of the operation op with what all lists of events have: the query
// parameters, the response and the stream.
func HistoryOf(op request.Operation) request.Operation {
	op.Description = "With the header Accept: text/event-stream, the response is a stream of server-sent events, " +
		"which sends each event when it is recorded. The ID of a server-sent event is the event's position in the log. A " +
		"stream ignores all query " +
		"parameters except filter."
	op.Query, op.Response, op.Streamed = request.ListParameters, request.PageType("events", reflect.TypeFor[Event]()),
		reflect.TypeFor[Event]()
	op.Headers = []request.Parameter{{Name: "Last-Event-ID", Kind: wire.Text,
		Description: "The stream begins after this position. To resume a stream, send the ID of the last server-sent " +
			"event that was received; 0 means all events. Without the header, the stream begins with the next event."}}
	return op
}

// Event has the fields of an event that filters, orderBy and read masks can name. The response
// contains the CloudEvent in structured JSON, with the extension attribute position.
type Event struct {
	SpecVersion string       `json:"specversion"`
	ID          string       `json:"id"`
	Type        string       `json:"type"`
	Source      string       `json:"source"`
	Subject     string       `json:"subject"`
	Time        time.Time    `json:"time"`
	ContentType string       `json:"datacontenttype"`
	DataSchema  string       `json:"dataschema,omitempty" query:"-"`
	Position    domain.Count `json:"position"`
	Actor       string       `json:"actor"`
	Command     string       `json:"command"`
	Cause       string       `json:"cause"`
	Correlation string       `json:"correlation"`
	// The JSON name of ControlPlane is in lower case, as CloudEvents requires for attribute names.
	ControlPlane string          `json:"controlplane,omitempty"`
	Address      string          `json:"clientaddress,omitempty"`
	Attempt      string          `json:"attempt,omitempty" query:"-"`
	State        string          `json:"state,omitempty" query:"-"`
	TraceParent  string          `json:"traceparent,omitempty"`
	TraceState   string          `json:"tracestate,omitempty" query:"-"`
	Data         json.RawMessage `json:"data" query:"-"`
}

var eventFields = query.FieldsOf[Event]().WithValues(openapi.Values(rules))

// Documentation describes the wire types of this package for the API reference.
var Documentation = openapi.Documentation{Rules: rules, Fields: fieldTexts, Types: typeTexts}

// recorded wraps an event as the domain.State of a row, so that query.List, which takes rows, can
// filter and order the events.
type recorded struct{ eventlog.Event }

// Exists implements domain.State.
func (recorded) Exists() bool { return true }

func renderEvent(row *projections.Row[recorded], out *Event) {
	e := &row.State.Event
	*out = Event{ID: e.ID, Type: e.Type, Subject: string(e.Name), Time: e.Time, Position: domain.Count(e.Position),
		Actor: e.Actor, Command: e.Command, Cause: e.Cause, Correlation: e.Correlation, ControlPlane: e.ControlPlane,
		Address: e.ClientAddress, TraceParent: e.Trace.Parent}
}

// A history is the part of the log that a request reads.
type history struct {
	subject string            // NATS subject filter, such as events.acme.>
	hidden  []string          // collections whose events the caller may not read
	mask    *domain.NodeMask  // replaces names of nodes; nil for the operator's account
	match   func(*Event) bool // reports whether an event matches the query parameter filter
}

func (h history) visible(e eventlog.Event) bool {
	return !slices.Contains(h.hidden, e.Name.Collection())
}

func (h history) matches(e eventlog.Event) bool {
	if !h.visible(e) {
		return false
	}
	var out Event
	renderEvent(&projections.Row[recorded]{State: recorded{h.masked(e)}}, &out)
	return h.match(&out)
}

// A Service serves the events of the log. All of its streams share one subscription to the log.
type Service struct {
	Options
	tail *eventlog.Tail
}

// Options configures the audit records and the proofs of a Service.
type Options struct {
	Audit     *audit.Recorder // stores the audit records; nil means that there are none to list
	Proofs    Proofs          // proves that events are in the log; nil disables proofs
	PublicLog bool            // serve the checkpoints and tiles of the log's Merkle tree without an API key
}

// NewService returns a Service for a log.
func NewService(log eventlog.Log, logger *slog.Logger, o Options) *Service {
	return &Service{o, eventlog.NewTail(log, logger)}
}

// Close ends all streams of events.
func (s *Service) Close() { s.tail.Close() }

// Operations returns the operations that list events, and those that describe and prove events.
func (s *Service) Operations() []request.Operation {
	return append([]request.Operation{
		HistoryOf(request.Operation{ID: "listAllEvents", Method: "GET", Path: "/v1/events", Tag: "events",
			Summary: "List the events of all accounts", Gate: request.ByOperator,
			Handle: func(c *request.Call) (any, error) { return s.Serve(c, "events.>") }}),
		HistoryOf(request.Operation{ID: "listAccountEvents", Method: "GET", Path: "/v1/accounts/{account}/events",
			Tag: "events", Summary: "List the events of an account", Permission: request.FollowEvents,
			Handle: func(c *request.Call) (any, error) { return s.Serve(c, "events."+c.Account+".>") }}),
		{ID: "getEventSchema", Method: "GET", Path: "/schemas/{schema}", Tag: "events",
			Summary: "Read the JSON Schema of the data of a type of event", Gate: request.Everyone,
			Description: "The attribute dataschema of an event is a URI with the path of its schema. Within a version of an " +
				"event type, the schema only gains optional fields.",
			Media: "application/schema+json", Handle: serveSchema},
		{ID: "getAsyncAPI", Method: "GET", Path: "/asyncapi.json", Tag: "events",
			Summary: "Read the description of the events (AsyncAPI 3)", Gate: request.Everyone,
			Media: "application/json", Handle: serveAsyncAPI},
	}, slices.Concat(s.auditOperations(), s.proofOperations())...)
}

// Serve responds with the events whose NATS subjects match the filter subject: with a stream if the
// client accepts text/event-stream, otherwise with a page.
func (s *Service) Serve(c *request.Call, subject string) (any, error) {
	h := s.historyOf(c, subject)
	p := c.Params()
	if wantsStream(c.Request) {
		return nil, s.stream(c, p, h)
	}
	return list(c, p, h)
}

// historyOf returns the events that match the filter subject and that the caller may read.
func (*Service) historyOf(c *request.Call, subject string) history {
	h := history{subject: subject, mask: request.NodeMask(c)}
	if c.Principal.Require(request.ManageSecrets) != nil {
		h.hidden = hidden
	}
	return h
}

// hidden lists the collections whose events only principals with the permission ManageSecrets may
// read.
var hidden = []string{domain.APIKeys.Collection, domain.Secrets.Collection}

// VisibleToReaders reports whether readers of the account of an event who do not have the
// permission ManageSecrets may read the event.
func VisibleToReaders(e eventlog.Event) bool { return history{hidden: hidden}.visible(e) }

// ForReaders returns a function that returns an event as readers of its account without the
// permission ManageSecrets receive it. It returns false if they may not read the event.
func ForReaders(mask domain.NodeMask) func(eventlog.Event) (eventlog.Event, bool) {
	return func(e eventlog.Event) (eventlog.Event, bool) {
		if !VisibleToReaders(e) {
			return eventlog.Event{}, false
		}
		h := history{}
		if e.Name.Account() != domain.System {
			h.mask = &mask
		}
		return h.shown(e), true
	}
}

func wantsStream(r *http.Request) bool {
	// a HEAD response has no body, so a stream would stay open without sending anything
	if r.Method != http.MethodGet {
		return false
	}
	for _, accepted := range strings.Split(r.Header.Get("Accept"), ",") {
		if kind, _, err := mime.ParseMediaType(accepted); err == nil && kind == "text/event-stream" {
			return true
		}
	}
	return false
}

// stream sends each event when it is recorded, from the position after Last-Event-ID on. Without
// this header, it begins with the next event.
func (s *Service) stream(c *request.Call, p *request.Params, h history) error {
	match, err := eventFields.Filter(p.Text("filter"))
	h.match = match
	after, ok := resumeAfter(c, &p.Violations)
	if err := request.JoinErrors(p.Err(), err); err != nil {
		return err
	}
	if !ok {
		after = c.World.Position()
	}
	leave, ok := c.Busy.Enter("streams of "+c.Principal.Account, c.Limits.Streams)
	if !ok {
		return &domain.Error{Code: domain.ResourceExhausted, Reason: request.ReasonTooManyStreams,
			Message: fmt.Sprintf("accounts/%s has %d open event streams, which is the limit: close one of "+
				"them", c.Principal.Account,
				c.Limits.Streams)}
	}
	defer leave()
	s.tail.Start(c.World.Position())
	c.Writer.Header().Set("Content-Type", "text/event-stream")
	c.Writer.Header().Set("Cache-Control", "no-store")
	c.Writer.Header().Set("X-Accel-Buffering", "no") // makes nginx forward each event at once
	c.Writer.WriteHeader(http.StatusOK)
	stream := &eventStream{Call: c, tail: s.tail, history: h, after: after,
		flush: http.NewResponseController(c.Writer).Flush}
	if err := stream.run(); err != nil && c.Ctx.Err() == nil {
		c.Logger.Warn("an event stream ended with an error; its client can resume it", "request", c.ID, "error", err)
	}
	return nil
}

// resumeAfter returns the position in the header Last-Event-ID; given is false without the header.
// It waits until the world has reached the position, for at most resumeTimeout, because another
// control plane may have sent an event that this one has not received yet.
func resumeAfter(c *request.Call, v *domain.Violations) (position uint64, given bool) {
	text := c.Request.Header.Get("Last-Event-ID")
	if text == "" {
		return 0, false
	}
	position, err := strconv.ParseUint(text, 10, 64)
	if err == nil {
		ctx, cancel := context.WithTimeout(c.Ctx, resumeTimeout)
		err = c.World.WaitFor(ctx, position)
		cancel()
	}
	if err != nil {
		v.Add("Last-Event-ID", "must be the position of an event, at most %d (the last event), or 0 for all "+
			"events", c.World.Position())
	}
	return position, true
}

const resumeTimeout = 200 * time.Millisecond

// An eventStream sends the events of a history to one client.
type eventStream struct {
	*request.Call
	history
	tail  *eventlog.Tail
	after uint64 // position of the last event that was sent or skipped
	flush func() error
}

func (s *eventStream) run() error {
	heartbeat := time.NewTicker(s.Limits.Heartbeat)
	defer heartbeat.Stop()
	if err := s.comment("connected"); err != nil {
		return err
	}
	for {
		events, at, complete, grown := s.tail.Since(s.after)
		if !complete {
			if err := s.catchUp(at); err != nil {
				return err
			}
			continue
		}
		if len(events) > 0 && !s.isAuthorized() {
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
			if !s.isAuthorized() {
				return nil
			}
			if err := s.comment("still here"); err != nil {
				return err
			}
		case <-s.Ctx.Done():
			return s.Ctx.Err()
		case <-s.tail.Done():
			return nil
		}
	}
}

// catchUp sends the events of the history after s.after. It reads the log at least up to the
// position end.
func (s *eventStream) catchUp(end uint64) error {
	for e, err := range s.Log.Read(s.Ctx, s.subject, s.after) {
		if err != nil {
			return err
		}
		if err := s.send(e); err != nil {
			return err
		}
	}
	s.after = max(s.after, end) // later events up to end have other subjects
	return s.flush()
}

func (s *eventStream) send(e eventlog.Event) error {
	s.after = e.Position
	if !subjectMatches(s.subject, e.Name.Subject()) || !s.matches(e) {
		return nil
	}
	data, err := json.Marshal(eventlog.Structured(s.shown(e)))
	if err == nil {
		_, err = fmt.Fprintf(s.Writer, "id: %d\ndata: %s\n\n", e.Position, data)
	}
	return err
}

// comment sends a comment with the stream's position as ID. A client that reconnects resumes from
// there, so that the server does not read the skipped events again.
func (s *eventStream) comment(text string) error {
	if _, err := fmt.Fprintf(s.Writer, ": %s\nid: %d\n\n", text, s.after); err != nil {
		return err
	}
	return s.flush()
}

// isAuthorized reports whether the API key or ID token with which the stream was opened is still
// valid.
func (s *eventStream) isAuthorized() bool { return request.IsValid(s.Call) }

// subjectMatches reports whether a NATS subject matches a filter, which is a subject or a prefix
// that ends in ">".
func subjectMatches(filter, subject string) bool {
	prefix, open := strings.CutSuffix(filter, ">")
	return subject == filter || open && strings.HasPrefix(subject, prefix)
}
