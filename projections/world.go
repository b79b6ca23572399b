// Package projections answers what is so now: it folds the log into the
// current state of every resource, in memory, and serves consistent views of it.
package projections

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections/live"
)

// A View is everything at one position of the log, and the live status of about the same moment.
// It is immutable and safe for concurrent use. The fields are the tables that are used most; TableOf
// returns that of any kind.
type View struct {
	eventlog.Checkpoint // the last event in it; zero before the first

	Accounts       *Table[domain.Account]
	APIKeys        *Table[domain.APIKey]
	Secrets        *Table[domain.Secret]
	Models         *Table[domain.Model]
	Datasets       *Table[domain.Dataset]
	Evaluators     *Table[domain.Evaluator]
	Shapes         *Table[domain.DeploymentShape]
	Deployments    *Table[domain.Deployment]
	DeployedModels *Table[domain.DeployedModel]
	Nodes          *Table[domain.Node]
	Quotas         *Table[domain.Quota]
	Live           live.View

	tables map[string]*table // by collection
}

// NewWorld returns an empty world of all kinds, from before the first event.
func NewWorld() *World {
	w := NewWorldOf(domain.Kinds...)
	w.fields = func(v *View) {
		v.Accounts = TableOf(v, domain.Accounts)
		v.APIKeys = TableOf(v, domain.APIKeys)
		v.Secrets = TableOf(v, domain.Secrets)
		v.Models = TableOf(v, domain.Models)
		v.Datasets = TableOf(v, domain.Datasets)
		v.Evaluators = TableOf(v, domain.Evaluators)
		v.Shapes = TableOf(v, domain.DeploymentShapes)
		v.Deployments = TableOf(v, domain.Deployments)
		v.DeployedModels = TableOf(v, domain.DeployedModels)
		v.Nodes = TableOf(v, domain.Nodes)
		v.Quotas = TableOf(v, domain.Quotas)
	}
	return w
}

// A World follows the log. One goroutine feeds it, with Run or Apply; any
// number read it, and none of them ever waits for another reader.
type World struct {
	mu      sync.Mutex
	folds   map[string]*fold // by collection; the map itself never changes
	fields  func(*View)      // sets the typed fields of a view; nil sets none
	at      eventlog.Checkpoint
	view    *View                      // the newest; current while its position and live status are
	saved   uint64                     // position of the newest snapshot
	waiters btree.Map[uint64, *waiter] // by the position they wait for
	failed  error                      // why the world stands still
	broken  chan struct{}              // closed when it has failed
	live    *live.Status
}

// NewWorldOf returns an empty world of some kinds. Its views have no typed fields: use TableOf.
func NewWorldOf(kinds ...domain.AnyKind) *World {
	w := &World{folds: map[string]*fold{}, broken: make(chan struct{}), live: live.NewStatus(time.Now())}
	for _, kind := range kinds {
		w.folds[kind.CollectionID()] = newFold(kind)
	}
	return w
}

// Live is what is kept aside and not in the log.
func (w *World) Live() *live.Status { return w.live }

// Run keeps the world up to date until ctx is done, the log fails, or an event
// does not fold. After a failure of the log it may be called again.
func (w *World) Run(ctx context.Context, log eventlog.Log) error {
	for e, err := range log.Follow(ctx, everything, w.Position()) {
		if err != nil {
			return err
		}
		if err := w.Apply(e); err != nil {
			return err
		}
	}
	return ctx.Err()
}

const everything = "events.>"

// Apply folds the next event. An event that does not fold leaves the world as
// it is, for good: WaitFor answers the error from then on. An event that is not
// the next is refused, DataLoss when one is missing before it.
func (w *World) Apply(e eventlog.Event) error {
	fold, decoded, err := w.decode(e)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.failed != nil:
		return w.failed
	case err == nil && e.Position <= w.at.Position:
		return fmt.Errorf("event %d (%s of %s) comes after event %d: each is folded once and in order", e.Position, e.Type, e.Name, w.at.Position)
	case err == nil && e.Position != w.at.Position+1:
		return eventlog.Follows(e, w.at.Position)
	case err == nil:
		err = fold.change(e, decoded)
	}
	if err != nil {
		w.failed = fmt.Errorf("event %d (%s of %s) does not fold: %w", e.Position, e.Type, e.Name, err)
		close(w.broken)
		return w.failed
	}
	w.at = eventlog.Checkpoint{Position: e.Position, EventID: e.ID}
	w.wake()
	return nil
}

func (w *World) decode(e eventlog.Event) (fold *fold, decoded any, err error) {
	fold = w.folds[e.Name.Collection()]
	if fold == nil {
		return nil, nil, fmt.Errorf("unknown collection %q: written by a newer version", e.Name.Collection())
	}
	decoded, err = fold.kind.DecodeEvent(e.Record)
	return fold, decoded, err
}

// View is the world at its present position.
func (w *World) View() *View {
	w.mu.Lock()
	defer w.mu.Unlock()
	status := w.live.View()
	if w.view != nil && w.view.Position == w.at.Position && w.view.Live.Version() == status.Version() {
		return w.view
	}
	v := &View{Checkpoint: w.at, tables: make(map[string]*table, len(w.folds)), Live: status}
	for collection, fold := range w.folds {
		v.tables[collection] = fold.share()
	}
	if w.fields != nil {
		w.fields(v)
	}
	w.view = v
	return v
}

// Position is the position of the last event that was folded.
func (w *World) Position() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at.Position
}

// Lookup implements eventlog.Rows. The row of a deleted resource has no state
// but a version: a command that creates it again must expect that version.
func (w *World) Lookup(name domain.Name) eventlog.Row {
	w.mu.Lock()
	defer w.mu.Unlock()
	fold := w.folds[name.Collection()]
	if fold == nil {
		return eventlog.Row{}
	}
	return fold.row(name)
}

// Row implements eventlog.Rows.
func (w *World) Row(name domain.Name) (state any, version uint64) {
	row := w.Lookup(name)
	return row.State, row.Version
}

// After is what a resource's state, as Row answers it, would be once a record is
// folded into it. The world stays as it is.
func (w *World) After(name domain.Name, state any, record domain.Record) (any, error) {
	fold := w.folds[name.Collection()]
	if fold == nil {
		return nil, fmt.Errorf("unknown collection %q", name.Collection())
	}
	return fold.kind.FoldRecord(state, record)
}
