package eventlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"anneal/domain"
)

// A Row is the current state of one resource. When the resource does not exist, State is nil, and
// Version is the position of the event that deleted the resource, or 0 when it never existed.
type Row struct {
	State      any
	Version    uint64    // position of the resource's last event
	CreateTime time.Time // time of the event that created the resource
	// ID of the event that created the resource; the prefixes of the resource's stored files contain
	// it
	CreateEvent string
	UpdateTime  time.Time // time of the resource's last event
}

// Rows reads the current states of resources, on which Do decides commands. The world of package
// projections implements it.
type Rows interface {
	// Lookup returns the row of a resource.
	Lookup(name domain.Name) Row
	// Row returns only the State and the Version of a resource's row.
	Row(name domain.Name) (state any, version uint64)
	// After applies an event to state, the state of a resource, and returns the new state. It does not
	// change the rows.
	After(name domain.Name, state any, record domain.Record) (any, error)
	// WaitFor returns when the rows include every event up to position.
	WaitFor(ctx context.Context, position uint64) error
}

// A Request describes who requests a change, when and why. Command is the ID of the request: when a
// client repeats a request whose event was recorded but not acknowledged, Do finds the event by
// this ID. Do generates an ID when Command is empty.
type Request struct {
	Time        time.Time
	Actor       string
	Command     string
	Cause       string
	Correlation string
	Trace       domain.Trace
	// ClientAddress is the IP address of the client; see Event.ClientAddress.
	ClientAddress string
	// Stored is called when the log has stored the event, which is not durable yet: see Write.Stored.
	// It may be nil.
	Stored func()
}

// Reaction returns the Request for a change in reaction to the event cause. actor makes the change
// at the time now. The events of the change name it as their cause, and have the correlation and
// the trace of cause.
func Reaction(cause Event, actor string, now time.Time) Request {
	return Request{Time: now, Actor: actor, Cause: cause.ID, Correlation: cause.Correlation, Trace: cause.Trace}
}

// A Change is the effect of a request on one resource. Event is the event that the request
// recorded, and Before is the row on which it was decided.
type Change struct {
	Name   domain.Name
	Before Row
	Event  Event // Event.Position is 0 when nothing was recorded, because Before already had the requested state
}

// Position returns the position of the change's event; 0 when nothing was recorded.
func (c Change) Position() uint64 { return c.Event.Position }

// After returns the row that the change produced. Later events of the resource do not affect it.
func (c Change) After(rows Rows) (Row, error) {
	if c.Event.Position == 0 {
		return c.Before, nil
	}
	state, err := rows.After(c.Name, c.Before.State, c.Event.Record)
	if err != nil {
		return Row{}, err
	}
	moment := c.Event.Time.UTC().Round(0)
	row := Row{State: state, Version: c.Event.Position, CreateTime: c.Before.CreateTime, CreateEvent: c.Before.CreateEvent,
		UpdateTime: moment}
	if c.Before.State == nil {
		row.CreateTime, row.CreateEvent = moment, c.Event.ID
	}
	return row, nil
}

// attempts is how often one Do tries to append its event. An attempt fails when another writer
// appends to the subject first, or when the append is not acknowledged.
const attempts = 16

// Do executes an intent: it calls the intent's Decide with the current row of the resource and
// appends the resulting event. When another writer appended an event to the resource first, Do
// repeats both with the new row. It returns the change with the appended event.
//
// When the error is a *domain.Error, nothing was recorded. After any other error the event may have
// been recorded, or may be recorded later. After an append that was not acknowledged, Do therefore
// returns no *domain.Error, except domain.ErrStale when that append is known to have failed.
//
// A caller that changes several resources reserves each with a separate event and commits with one
// event, because an append of several events is not atomic across a power failure.
func Do(ctx context.Context, log Log, rows Rows, req Request, intent domain.Intent) (change Change, err error) {
	ctx, span := startDecision(ctx, req, intent)
	defer endDecision(span, &change, &err)
	if req.Command == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return Change{}, err
		}
		req.Command = id.String()
	}
	d := decision{log: log, rows: rows, req: req, intent: intent}
	if pipelined, ok := rows.(PipelinedRows); ok {
		d.pipeline = pipelined.Commands()
	}
	return d.run(ctx)
}

// A decision holds the state of one call of Do.
type decision struct {
	log            Log
	rows           Rows
	pipeline       *Pipeline // nil when the rows have none
	req            Request
	intent         domain.Intent
	tried          []Change // the change of each attempt that had an event to append
	looked         uint64   // position up to which look has read the events of the resource
	since          uint64   // version of the row in the first attempt; the event of every attempt has a later position
	unacknowledged bool     // an append of this decision was not acknowledged
}

func (d *decision) run(ctx context.Context) (Change, error) {
	for attempt := range attempts {
		change, appended, err := d.attempt(ctx, attempt == 0)
		if err == nil && appended {
			return change, nil
		}
		if !appended {
			return d.conclude(ctx, change, err)
		}
		d.unacknowledged = d.unacknowledged || errors.Is(err, ErrUncertain)
		if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUncertain) {
			return d.conclude(ctx, Change{}, err)
		}
		found, err := d.resolve(ctx)
		if err != nil {
			return Change{}, uncertain(err)
		}
		if found.Position() > 0 {
			return found, nil
		}
		if attempt > 1 && !Sleep(ctx, rand.N(time.Duration(attempt)*time.Millisecond)) {
			return d.conclude(ctx, Change{}, ctx.Err())
		}
	}
	return d.conclude(ctx, Change{}, domain.Errorf(domain.Aborted,
		"%s was changed concurrently in each of %d attempts: try again", d.intent.Name, attempts))
}

// conclude returns the result of run when the server acknowledged no append. change and err are the
// result of the last attempt. If an append was not acknowledged, its event may be in the log, and
// conclude looks for the event. If the log has the event, conclude returns the change with that
// event. If the log does not have the event, the event may still arrive, so conclude replaces err
// with ErrUncertain, unless err is ErrStale and the server will refuse the event.
func (d *decision) conclude(ctx context.Context, change Change, err error) (Change, error) {
	if !d.unacknowledged {
		return change, err
	}
	found, newest, lookup := d.look(ctx)
	switch {
	case lookup == nil && found.Position() > 0:
		return found, nil
	case lookup == nil && errors.Is(err, domain.ErrStale) && newest > d.since:
		return Change{}, err // the lost append expected an older version, so the server will refuse it
	case err != nil:
		return Change{}, uncertain(err)
	case lookup != nil:
		return Change{}, uncertain(lookup)
	}
	return change, nil
}

// attempt decides the intent and appends the resulting event. appended is false when there is no
// event to append; otherwise err is the error of the append. first is true for the first attempt.
func (d *decision) attempt(ctx context.Context, first bool) (change Change, appended bool, err error) {
	leave := func() {}
	var l *lane
	if d.pipeline != nil {
		l, leave = d.pipeline.enter(ctx, d.intent.Name)
		defer leave()
	}
	epoch := 0
	if l != nil {
		epoch = d.pipeline.at()
		_, version := d.rows.Row(d.intent.Name)
		if d.pipeline.has(l, d.req.Command) { // a concurrent execution of the command has recorded it
			if first {
				d.since = version
			}
			return Change{}, true, ErrConflict // look finds it
		}
	}
	row, durable := d.rows.Lookup(d.intent.Name), true
	if l != nil {
		if newer, ok := d.pipeline.row(d.rows, l, row.Version); ok {
			row, durable = newer, false
		}
	}
	if d.unacknowledged && row.Version > d.looked { // the row may include the event that was not acknowledged
		return Change{}, true, ErrConflict
	}
	change, err = d.decide(row, first)
	if err != nil || change.Event.ID == "" {
		leave()
		if !durable { // the result must not depend on an event that a power failure can still lose
			if failed := d.rows.WaitFor(ctx, row.Version); failed != nil {
				d.pipeline.Applied(d.intent.Name, row.Version) // the log may have lost the event
				return Change{}, false, failed
			}
		}
		return change, false, err
	}
	stored := func(position uint64) {
		change.Event.Position = position
		if l != nil {
			d.pipeline.stored(l, change, epoch)
			leave()
		}
		if d.req.Stored != nil {
			d.req.Stored()
		}
	}
	position, err := appendTraced(ctx, d.log, Write{Expect: change.Before.Version, Event: change.Event, Stored: stored})
	change.Event.Position = position
	if l != nil {
		d.pipeline.catchUp(d.rows, d.intent.Name)
	}
	return change, true, err
}

// decide calls the intent's Decide with the row current and returns the change to append. The
// change has no event when the row already has the requested state. first is true for the first
// attempt, whose row's version becomes d.since.
func (d *decision) decide(current Row, first bool) (Change, error) {
	change := Change{Name: d.intent.Name, Before: current}
	if first {
		d.since = change.Before.Version
	}
	if d.intent.IsStale(change.Before.Version) {
		return change, domain.ErrStale
	}
	if err := d.intent.CheckCreateEvent(change.Before.CreateEvent); err != nil {
		return change, err
	}
	record, err := d.intent.Decide(change.Before.State, d.req.Time)
	if err != nil || record.Type == "" {
		return change, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return change, err
	}
	change.Event = Event{
		Record: record, ID: id.String(), Name: d.intent.Name, Time: d.req.Time,
		Actor: d.req.Actor, Command: d.req.Command, Cause: d.req.Cause, Correlation: d.req.Correlation,
		Trace: d.req.Trace, ClientAddress: d.req.ClientAddress,
	}
	d.tried = append(d.tried, change)
	return change, nil
}

// resolve finds out what became of an append that lost a race or was not acknowledged. It returns
// the change of this decision if the log has its event. Otherwise it returns an empty change once
// the rows include the newest event of the resource, so that run can retry.
func (d *decision) resolve(ctx context.Context) (Change, error) {
	found, newest, err := d.look(ctx)
	if err != nil || found.Position() > 0 {
		return found, err
	}
	if n := len(d.tried); d.pipeline != nil && n > 0 && newest <= d.tried[n-1].Before.Version {
		// the log does not have the event on which the last attempt was decided
		d.pipeline.Applied(d.intent.Name, d.tried[n-1].Before.Version)
	}
	return Change{}, d.rows.WaitFor(ctx, newest)
}

// look reads the events of the resource after position d.since. found is the change of this
// decision if one of them is its event, otherwise the zero Change. newest is the position of the
// resource's newest event; 0 when there is none after d.since.
func (d *decision) look(ctx context.Context) (found Change, newest uint64, err error) {
	for e, err := range d.log.Read(ctx, d.intent.Name.Subject(), d.since) {
		if err != nil {
			return Change{}, 0, fmt.Errorf("read events of %s: %w", d.intent.Name, err)
		}
		newest = max(newest, e.Position)
		if e.Command != d.req.Command {
			continue
		}
		tried := slices.IndexFunc(d.tried, func(c Change) bool { return c.Event.ID == e.ID })
		if tried >= 0 {
			found = d.tried[tried]
			found.Event.Position = e.Position
			continue
		}
		// the same command was executed concurrently, and that execution recorded the event
		if found, err = recordedOn(ctx, d.log, d.rows, d.req.Command, e.Name); err != nil {
			return Change{}, 0, err
		}
	}
	d.looked = max(d.since, newest)
	return found, newest, nil
}

// Recorded returns the change that a command recorded on a resource, as Do returned it, by folding
// the resource's events. The position of the change is 0 when the command recorded nothing.
func Recorded(ctx context.Context, log Log, rows Rows, command string, name domain.Name) (Change, error) {
	change, err := recordedOn(ctx, log, rows, command, name)
	if err != nil {
		return Change{}, fmt.Errorf("look up command %s on %s: %w", command, name, err)
	}
	return change, nil
}

func recordedOn(ctx context.Context, log Log, rows Rows, command string, name domain.Name) (change Change, err error) {
	var row Row
	for e, err := range log.Read(ctx, name.Subject(), 0) {
		if err != nil {
			return Change{}, err
		}
		this := Change{Name: name, Before: row, Event: e}
		if e.Command == command {
			change = this
		}
		if row, err = this.After(rows); err != nil {
			return Change{}, err
		}
		if state, ok := row.State.(domain.State); ok && !state.Exists() {
			row = Row{Version: row.Version}
		}
	}
	if change.Event.Position == 0 {
		change = Change{Name: name, Before: row}
	}
	return change, nil
}
