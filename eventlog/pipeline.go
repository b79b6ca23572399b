package eventlog

import (
	"context"
	"maps"
	"sync"
	"time"

	"anneal/domain"
)

// A Pipeline lets Do decide a command on an event that the log has stored, but not synced yet. So
// several commands on one resource share an fsync, and do not conflict with one another in this
// process. Without it, each of them waits until the rows have the event of the one before.
//
// Every power failure that loses an event also loses the later events that were decided on it,
// because the log is synced in its order. A command that is refused, or records nothing, because of
// such an event returns only when the rows include the event.
//
// The zero Pipeline is ready to use.
type Pipeline struct {
	mu    sync.Mutex
	lanes map[domain.Name]*lane
	epoch int // number of calls of Forget
}

// PipelinedRows are Rows that embed a Pipeline. They call its Applied for each event that they
// include.
type PipelinedRows interface {
	Rows
	Commands() *Pipeline
}

// Commands returns p. It implements PipelinedRows for rows that embed p.
func (p *Pipeline) Commands() *Pipeline { return p }

// A lane orders the commands on one resource. It exists while a command uses it or the rows lack
// its newest event.
type lane struct {
	turn   chan struct{} // has an element while a command is decided and appended
	users  int           // number of commands that use the lane
	newest *Change       // change with the resource's newest stored event; nil when the rows have the event
	// by ID of a command: position of its stored event, which the rows do not have yet
	commands map[string]uint64
}

// turnTimeout is how long a command waits for another one on the same resource. Then it is decided
// without its turn, which may only cause a conflict: an append that the server does not acknowledge
// must not delay other commands.
const turnTimeout = 100 * time.Millisecond

// enter waits until no other command on the resource is being decided or appended. The caller calls
// leave when its own command is stored, or has failed.
func (p *Pipeline) enter(ctx context.Context, name domain.Name) (l *lane, leave func()) {
	p.mu.Lock()
	if p.lanes == nil {
		p.lanes = map[domain.Name]*lane{}
	}
	l = p.lanes[name]
	if l == nil {
		l = &lane{turn: make(chan struct{}, 1)}
		p.lanes[name] = l
	}
	l.users++
	p.mu.Unlock()
	mine := l.await(ctx)
	return l, sync.OnceFunc(func() {
		if mine {
			<-l.turn
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		l.users--
		p.drop(name, l)
	})
}

// await waits for the turn of a command. The result is false after turnTimeout, or when ctx is
// done.
func (l *lane) await(ctx context.Context) bool {
	select {
	case l.turn <- struct{}{}:
		return true
	default:
	}
	timer := time.NewTimer(turnTimeout)
	defer timer.Stop()
	select {
	case l.turn <- struct{}{}:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// drop removes a lane that is not needed. The caller holds the mutex.
func (p *Pipeline) drop(name domain.Name, l *lane) {
	if l.users == 0 && l.newest == nil && len(l.commands) == 0 && p.lanes[name] == l {
		delete(p.lanes, name)
	}
}

// stored records a change whose event the log has stored and may not have synced yet.
func (p *Pipeline) stored(l *lane, change Change, epoch int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.commands == nil {
		l.commands = map[string]uint64{}
	}
	l.commands[change.Event.Command] = change.Position()
	if epoch == p.epoch && (l.newest == nil || l.newest.Position() < change.Position()) {
		l.newest = &change
	}
}

// has reports whether the log has stored an event of a command that the rows do not have yet.
func (p *Pipeline) has(l *lane, command string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return l.commands[command] > 0
}

// at returns the number of calls of Forget.
func (p *Pipeline) at() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epoch
}

// Forget forgets the stored events, because the rows on which they were decided have been replaced.
// Commands that are being decided on them are not recorded here either.
func (p *Pipeline) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.epoch++
	for name, l := range p.lanes {
		l.newest = nil
		p.drop(name, l)
	}
}

// row returns the row after the resource's newest stored event. The result is false when the rows,
// which have the resource at version, include that event.
func (p *Pipeline) row(rows Rows, l *lane, version uint64) (Row, bool) {
	p.mu.Lock()
	newest := l.newest
	p.mu.Unlock()
	if newest == nil || newest.Position() <= version {
		return Row{}, false
	}
	row, err := newest.After(rows)
	if err != nil {
		return Row{}, false
	}
	if state, ok := row.State.(domain.State); ok && !state.Exists() {
		row = Row{Version: row.Version}
	}
	return row, true
}

// catchUp forgets the newest stored event of a resource if the rows include it already.
func (p *Pipeline) catchUp(rows Rows, name domain.Name) {
	_, version := rows.Row(name)
	p.Applied(name, version)
}

// Applied records that the rows include the events of a resource up to a position.
func (p *Pipeline) Applied(name domain.Name, position uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lanes[name]
	if l == nil {
		return
	}
	maps.DeleteFunc(l.commands, func(_ string, at uint64) bool { return at <= position })
	if l.newest != nil && l.newest.Position() <= position {
		l.newest = nil
	}
	p.drop(name, l)
}

// DoAll executes intents in order, as Do does, each with a new command ID. It executes an intent as
// soon as the event of the one before is stored, so that the events share one fsync. After an
// intent that fails before its event is stored, it executes no more; the errors of those that are
// not executed are the error of that intent. It returns when all events are durable.
func DoAll(ctx context.Context, log Log, rows Rows, req Request, intents ...domain.Intent) ([]Change, []error) {
	changes, errs := make([]Change, len(intents)), make([]error, len(intents))
	var all sync.WaitGroup
	defer all.Wait()
	for i, intent := range intents {
		stored, ended := make(chan struct{}), make(chan struct{})
		one := req
		one.Command, one.Stored = "", sync.OnceFunc(func() { close(stored) })
		all.Go(func() {
			defer close(ended)
			changes[i], errs[i] = Do(ctx, log, rows, one, intent)
		})
		select {
		case <-stored:
			continue
		case <-ended:
		}
		if errs[i] != nil {
			for after := i + 1; after < len(errs); after++ {
				errs[after] = errs[i]
			}
			break
		}
	}
	return changes, errs
}
