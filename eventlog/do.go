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
	CreateEvent string    // ID of that event; it names the folders of the resource
	UpdateTime  time.Time // of its last event
}

// Rows is the projection of the log that commands are decided on.
type Rows interface {
	// Lookup returns the row of a resource.
	Lookup(name domain.Name) Row
	// Row returns State and Version of Lookup.
	Row(name domain.Name) (state any, version uint64)
	// After returns what a resource's state would be once a record is folded
	// into it. The rows stay as they are.
	After(name domain.Name, state any, record domain.Record) (any, error)
	// WaitFor returns once every event up to position is in the rows.
	WaitFor(ctx context.Context, position uint64) error
}

// A Request says who wants something done, when, and why. Command is its ID:
// the same one given again is recognised when its first attempt was recorded
// but not acknowledged. Empty, one is made.
type Request struct {
	Time        time.Time
	Actor       string
	Command     string
	Cause       string
	Correlation string
}

// A Result is what a request changed.
type Result struct {
	Position uint64   // of the last event; 0 when every fact was already recorded
	Changes  []Change // one for each intent, in their order
}

// Of returns the change of a resource; false when no intent named it.
func (r Result) Of(name domain.Name) (Change, bool) {
	for _, c := range r.Changes {
		if c.Name == name {
			return c, true
		}
	}
	return Change{}, false
}

// A Change is one event and the state that it was decided on.
type Change struct {
	Name   domain.Name
	Before Row
	Event  Event // Position 0 when Before already held the fact: nothing was recorded
}

// After returns the row as the change left it, whatever happened to the
// resource since.
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

// Do carries out the intents together or not at all: it decides each on its
// row, appends what is decided, and decides again when another writer came
// first. The result holds the states that its own events produced.
//
// After a *domain.Fault nothing was recorded. After any other error the events
// may have been recorded, or may still be: once one append was not
// acknowledged, no later failure is a fault.
func Do(ctx context.Context, log Log, rows Rows, req Request, intents ...domain.Intent) (Result, error) {
	if req.Command == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return Result{}, err
		}
		req.Command = id.String()
	}
	d := decision{log: log, rows: rows, req: req, intents: intents, tried: map[string]Change{}}
	return d.run(ctx)
}

// A decision is one run of Do.
type decision struct {
	log     Log
	rows    Rows
	req     Request
	intents []domain.Intent
	tried   map[string]Change      // by event ID: what each attempt would change
	since   map[domain.Name]uint64 // versions of the first attempt: its events come after them
	unsure  bool                   // an append was not acknowledged
}

func (d *decision) run(ctx context.Context) (Result, error) {
	for attempt := range attempts {
		changes, writes, err := d.decide()
		if err != nil || len(writes) == 0 {
			return d.conclude(ctx, Result{Changes: changes}, err)
		}
		position, err := d.log.Append(ctx, writes...)
		if err == nil {
			return recordedAt(changes, position), nil
		}
		d.unsure = d.unsure || errors.Is(err, ErrUncertain)
		if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUncertain) {
			return d.conclude(ctx, Result{}, err)
		}
		found, err := d.settle(ctx)
		if err != nil {
			return Result{}, uncertain(err)
		}
		if found.Position > 0 {
			return found, nil
		}
		if attempt > 1 && !sleep(ctx, rand.N(time.Duration(attempt)*time.Millisecond)) {
			return d.conclude(ctx, Result{}, ctx.Err())
		}
	}
	return d.conclude(ctx, Result{}, domain.Faultf(domain.Aborted, "%s was changed by others %d times in a row: try again", d.intents[0].Name, attempts))
}

// conclude returns what run ends with when its last append did not succeed. If
// an earlier append was not acknowledged its events may be in the log by now;
// they are the result. If they are not there, they may still arrive, so an
// error becomes ErrUncertain.
func (d *decision) conclude(ctx context.Context, result Result, err error) (Result, error) {
	if !d.unsure {
		return result, err
	}
	found, lookup := d.own(ctx)
	switch {
	case lookup == nil && found.Position > 0:
		return found, nil
	case err != nil:
		return Result{}, uncertain(err)
	case lookup != nil:
		return Result{}, uncertain(lookup)
	}
	return result, nil
}

func (d *decision) decide() (changes []Change, writes []Write, err error) {
	first := d.since == nil
	if first {
		d.since = map[domain.Name]uint64{}
	}
	for _, intent := range d.intents {
		before := d.rows.Lookup(intent.Name)
		if first {
			d.since[intent.Name] = before.Version
		}
		record, err := intent.Decide(before.State, d.req.Time)
		if err != nil {
			return nil, nil, err
		}
		change := Change{Name: intent.Name, Before: before}
		if record.Type != "" {
			id, err := uuid.NewV7()
			if err != nil {
				return nil, nil, err
			}
			change.Event = Event{
				Record: record, ID: id.String(), Name: intent.Name, Time: d.req.Time,
				Actor: d.req.Actor, Command: d.req.Command, Cause: d.req.Cause, Correlation: d.req.Correlation,
			}
			d.tried[change.Event.ID] = change
			writes = append(writes, Write{Expect: before.Version, Event: change.Event})
		}
		changes = append(changes, change)
	}
	return changes, writes, nil
}

// recordedAt gives the changes their positions: the last event of an append is
// at position, and those before it directly precede it.
func recordedAt(changes []Change, position uint64) Result {
	next := position
	for i := len(changes) - 1; i >= 0; i-- {
		if changes[i].Event.ID != "" {
			changes[i].Event.Position = next
			next--
		}
	}
	return Result{Position: position, Changes: changes}
}

// settle finds out what became of an append that was not acknowledged as ours.
// It returns our own events when they were recorded after all; otherwise it
// waits until the rows hold what came first.
func (d *decision) settle(ctx context.Context) (Result, error) {
	found, newest, err := d.look(ctx)
	if err != nil || found.Position > 0 {
		return found, err
	}
	return Result{}, d.rows.WaitFor(ctx, newest)
}

// own returns the changes that this command recorded; Position 0 when there
// are none.
func (d *decision) own(ctx context.Context) (Result, error) {
	found, _, err := d.look(ctx)
	return found, err
}

// look reads what was recorded on the intents' subjects since the first
// attempt: our own events, and the position of the newest of all.
func (d *decision) look(ctx context.Context) (found Result, newest uint64, err error) {
	changes := map[domain.Name]Change{}
	for _, intent := range d.intents {
		for e, err := range d.log.Read(ctx, intent.Name.Subject(), d.since[intent.Name]) {
			if err != nil {
				return Result{}, 0, fmt.Errorf("read events of %s: %w", intent.Name, err)
			}
			newest = max(newest, e.Position)
			if e.Command != d.req.Command {
				continue
			}
			change, ours := d.tried[e.ID]
			if change.Event.Position = e.Position; !ours { // an earlier process recorded it
				if change, err = recordedOn(ctx, d.log, d.rows, d.req.Command, e.Name); err != nil {
					return Result{}, 0, err
				}
			}
			changes[e.Name] = change
			found.Position = max(found.Position, e.Position)
		}
	}
	for _, intent := range d.intents {
		change, ok := changes[intent.Name]
		if !ok {
			change = Change{Name: intent.Name, Before: d.rows.Lookup(intent.Name)}
		}
		found.Changes = append(found.Changes, change)
	}
	return found, newest, nil
}

// Recorded returns what a command recorded on the named resources, folded from
// their history: the result that its first run would have returned. Position
// is 0 when it recorded nothing.
func Recorded(ctx context.Context, log Log, rows Rows, command string, names ...domain.Name) (Result, error) {
	var result Result
	for _, name := range names {
		change, err := recordedOn(ctx, log, rows, command, name)
		if err != nil {
			return Result{}, fmt.Errorf("look for command %s on %s: %w", command, name, err)
		}
		result.Position = max(result.Position, change.Event.Position)
		result.Changes = append(result.Changes, change)
	}
	return result, nil
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
