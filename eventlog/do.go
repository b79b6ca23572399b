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

// Rows is what commands are decided on: the projection of the log.
type Rows interface {
	// Row is the state of a resource and the position of its last event; nil
	// and 0 when there is none.
	Row(name domain.Name) (state any, version uint64)
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

const attempts = 16 // per Do: each lost race means that somebody else made progress

// Do carries out the intents together or not at all: it decides each on its
// row, appends what is decided, and decides again when another writer came
// first. It answers the position of the last event, or 0 when every fact was
// already recorded. A fault of Decide comes back as it is; after any fault
// nothing was recorded, after another error it may have been.
func Do(ctx context.Context, log Log, rows Rows, req Request, intents ...domain.Intent) (uint64, error) {
	if req.Command == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return 0, err
		}
		req.Command = id.String()
	}
	for attempt := range attempts {
		writes, err := decide(rows, req, intents)
		if err != nil || len(writes) == 0 {
			return 0, err
		}
		position, err := log.Append(ctx, writes...)
		if err == nil {
			return position, nil
		}
		if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUncertain) {
			return 0, err
		}
		recorded, err := settle(ctx, log, rows, req.Command, writes)
		if err != nil {
			return 0, uncertain(err)
		}
		if recorded > 0 {
			return recorded, nil
		}
		if attempt > 1 && !sleep(ctx, rand.N(time.Duration(attempt)*time.Millisecond)) {
			return 0, ctx.Err()
		}
	}
	return 0, domain.Faultf(domain.Aborted, "%s was changed by others %d times in a row: try again", intents[0].Name, attempts)
}

func decide(rows Rows, req Request, intents []domain.Intent) ([]Write, error) {
	var writes []Write
	for _, intent := range intents {
		state, version := rows.Row(intent.Name)
		record, err := intent.Decide(state, req.Time)
		if err != nil {
			return nil, err
		}
		if record.Type == "" {
			continue
		}
		id, err := uuid.NewV7()
		if err != nil {
			return nil, err
		}
		writes = append(writes, Write{Expect: version, Event: Event{
			Record: record, ID: id.String(), Name: intent.Name, Time: req.Time,
			Actor: req.Actor, Command: req.Command, Cause: req.Cause, Correlation: req.Correlation,
		}})
	}
	return writes, nil
}

// settle finds out what became of an append that was not acknowledged as ours.
// It answers the position of our own last event when it was recorded after
// all; otherwise it waits until the rows hold what came first.
func settle(ctx context.Context, log Log, rows Rows, command string, writes []Write) (uint64, error) {
	var ours, newest uint64
	for _, w := range writes {
		for e, err := range log.Read(ctx, w.Name.Subject(), w.Expect) {
			if err != nil {
				return 0, fmt.Errorf("looking for what came first on %s: %w", w.Name, err)
			}
			if e.Command == command {
				ours = max(ours, e.Position)
			}
			newest = max(newest, e.Position)
		}
	}
	if ours > 0 {
		return ours, nil
	}
	return 0, rows.WaitFor(ctx, newest)
}

// Recorded is the position of the last event that a command recorded on one of
// the names; 0 when it recorded none there.
func Recorded(ctx context.Context, log Log, command string, names ...domain.Name) (position uint64, err error) {
	for _, name := range names {
		for e, err := range log.Read(ctx, name.Subject(), 0) {
			if err != nil {
				return 0, fmt.Errorf("looking for a command on %s: %w", name, err)
			}
			if e.Command == command {
				position = max(position, e.Position)
			}
		}
	}
	return position, nil
}
