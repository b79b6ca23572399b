package eventlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"anneal/domain"
)

// A Row is the current state of one resource. State is nil when it does not
// exist; Version is then the position of the event that deleted it, or 0.
type Row struct {
	State       any
	Version     uint64    // position of the resource's last event
	CreateTime  time.Time // of the event that created it
	CreateEvent string    // ID of that event; it names the resource's directories
	UpdateTime  time.Time // of its last event
}

// Rows is the projection of the log on which commands are decided.
type Rows interface {
	// Lookup returns the row of a resource.
	Lookup(name domain.Name) Row
	// Row returns State and Version of Lookup.
	Row(name domain.Name) (state any, version uint64)
	// After returns a resource's state with a record folded into it. The rows do not change.
	After(name domain.Name, state any, record domain.Record) (any, error)
	// WaitFor returns when every event up to position is in the rows.
	WaitFor(ctx context.Context, position uint64) error
}

// A Request describes who requests a change, when and why. Command is its ID: a repeated command
// is recognized when its first attempt was recorded but not acknowledged. Do generates an empty
// one.
type Request struct {
	Time        time.Time
	Actor       string
	Command     string
	Cause       string
	Correlation string
}

// A Change is the effect of a request: one event, and the row that it was decided on.
type Change struct {
	Name   domain.Name
	Before Row
	Event  Event // Position 0 when Before already had the requested state: nothing was recorded
}

// Position returns the position of the change's event; 0 when nothing was recorded.
func (c Change) Position() uint64 { return c.Event.Position }

// After returns the row that the change produced, whatever happened to the resource since.
func (c Change) After(rows Rows) (Row, error) {
	if c.Event.Position == 0 {
		return c.Before, nil
	}
	state, err := rows.After(c.Name, c.Before.State, c.Event.Record)
	if err != nil {
		return Row{}, err
	}
	moment := c.Event.Time.UTC().Round(0)
	row := Row{State: state, Version: c.Event.Position, CreateTime: c.Before.CreateTime, CreateEvent: c.Before.CreateEvent, UpdateTime: moment}
	if c.Before.State == nil {
		row.CreateTime, row.CreateEvent = moment, c.Event.ID
	}
	return row, nil
}

const attempts = 16 // per Do: each lost race means that another writer made progress

// Do executes an intent: it decides the intent on its row, appends the event, and decides again
// when another writer came first. The change holds the state that its own event produced.
//
// After a *domain.Fault nothing was recorded. After any other error the event
// may have been recorded, or may still be: once one append was not
// acknowledged, no later failure is a fault.
//
// A change of several resources reserves each by a separate event and commits with one event: an
// append of several events is not atomic across a power failure.
func Do(ctx context.Context, log Log, rows Rows, req Request, intent domain.Intent) (Change, error) {
	if req.Command == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return Change{}, err
		}
		req.Command = id.String()
	}
	d := decision{log: log, rows: rows, req: req, intent: intent, tried: map[string]Change{}}
	return d.run(ctx)
}

// A decision is one call of Do.
type decision struct {
	log    Log
	rows   Rows
	req    Request
	intent domain.Intent
	tried  map[string]Change // by event ID: what each attempt would change
	since  uint64            // version of the first attempt: its event comes after it
	unsure bool              // an append was not acknowledged
}

func (d *decision) run(ctx context.Context) (Change, error) {
	for attempt := range attempts {
		change, err := d.decide(attempt == 0)
		if err != nil || change.Event.ID == "" {
			return d.conclude(ctx, change, err)
		}
		position, err := d.log.Append(ctx, Write{Expect: change.Before.Version, Event: change.Event})
		if err == nil {
			change.Event.Position = position
			return change, nil
		}
		d.unsure = d.unsure || errors.Is(err, ErrUncertain)
		if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUncertain) {
			return d.conclude(ctx, Change{}, err)
		}
		found, err := d.settle(ctx)
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
	return d.conclude(ctx, Change{}, domain.Errorf(domain.Aborted, "%s: %d attempts lost to concurrent changes: try again", d.intent.Name, attempts))
}

// conclude returns the result of run when its last append did not succeed. When an earlier append
// was not acknowledged and its event is in the log by now, that event is the change. Otherwise it
// may still arrive, so an error becomes ErrUncertain.
func (d *decision) conclude(ctx context.Context, change Change, err error) (Change, error) {
	if !d.unsure {
		return change, err
	}
	found, _, lookup := d.look(ctx)
	switch {
	case lookup == nil && found.Position() > 0:
		return found, nil
	case err != nil:
		return Change{}, uncertain(err)
	case lookup != nil:
		return Change{}, uncertain(lookup)
	}
	return change, nil
}

// decide decides the intent on its row. The change has no event when the row already has the
// requested state.
func (d *decision) decide(first bool) (Change, error) {
	change := Change{Name: d.intent.Name, Before: d.rows.Lookup(d.intent.Name)}
	if first {
		d.since = change.Before.Version
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
	}
	d.tried[change.Event.ID] = change
	return change, nil
}

// settle resolves an append that failed or was not acknowledged. It returns our own change when
// that was recorded; otherwise it waits until the rows hold the events that came first.
func (d *decision) settle(ctx context.Context) (Change, error) {
	found, newest, err := d.look(ctx)
	if err != nil || found.Position() > 0 {
		return found, err
	}
	return Change{}, d.rows.WaitFor(ctx, newest)
}

// look reads the events of the intent's subject since the first attempt. It returns our own change
// and the position of the newest event.
func (d *decision) look(ctx context.Context) (found Change, newest uint64, err error) {
	for e, err := range d.log.Read(ctx, d.intent.Name.Subject(), d.since) {
		if err != nil {
			return Change{}, 0, fmt.Errorf("read events of %s: %w", d.intent.Name, err)
		}
		newest = max(newest, e.Position)
		if e.Command != d.req.Command {
			continue
		}
		change, ours := d.tried[e.ID]
		if change.Event.Position = e.Position; !ours { // an earlier process recorded it
			if change, err = recordedOn(ctx, d.log, d.rows, d.req.Command, e.Name); err != nil {
				return Change{}, 0, err
			}
		}
		found = change
	}
	return found, newest, nil
}

// Recorded returns the change that a command recorded on a resource, folded from its history, as
// its first run would have returned it. Its position is 0 when the command recorded nothing.
func Recorded(ctx context.Context, log Log, rows Rows, command string, name domain.Name) (Change, error) {
	change, err := recordedOn(ctx, log, rows, command, name)
	if err != nil {
		return Change{}, fmt.Errorf("look for command %s on %s: %w", command, name, err)
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
