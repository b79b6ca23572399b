// Package projections folds the log into the current state of every resource, in memory, and
// provides consistent views of the state.
package projections

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/btree"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/archive"
	"anneal/projections/live"
	"anneal/projections/waits"
	"anneal/tracing"
)

// A View is the state of all resources at one position of the log, with the live status of about
// the same time. It is immutable and safe for concurrent use. The fields are the tables of the
// kinds that are used most; TableOf returns the table of any kind.
type View struct {
	eventlog.Checkpoint // the last event in the view; zero before the first event

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
	BatchFiles     *Table[domain.BatchFile]
	Batches        *Table[domain.Batch]
	Subscriptions  *Table[domain.Subscription]
	Sessions       *Table[domain.TrainingSession]
	Runs           *Table[domain.TrainingRun]
	Live           live.View
	Waits          *waits.History // how long started jobs had waited; do not modify, other views share it
	// position of a view of an earlier state, and its errors; nil in other views: see World.ViewAt
	Past *Moment

	tables   map[string]*table // tables by collection
	fleet    func() domain.Fleet
	rebuilds int // number of rebuilds before the view; each invalidates tables of earlier positions
}

// NewWorld returns an empty world of all kinds.
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
		v.BatchFiles = TableOf(v, domain.BatchFiles)
		v.Batches = TableOf(v, domain.Batches)
		v.Subscriptions = TableOf(v, domain.Subscriptions)
		v.Sessions = TableOf(v, domain.TrainingSessions)
		v.Runs = TableOf(v, domain.TrainingRuns)
		v.fleet = sync.OnceValue(func() domain.Fleet { return fleetOf(v.Nodes) })
	}
	return w
}

// A World is the current state of all resources. One goroutine folds events into it with Run or
// Apply. Any number of goroutines can read it concurrently.
type World struct {
	mu      sync.Mutex
	folds   map[string]*fold // tables by collection; the map itself never changes
	fields  func(*View)      // sets the fields of a view that are typed tables, such as Jobs; nil sets none
	at      eventlog.Checkpoint
	view    *View                      // the newest view; reused until the position or the live status changes
	saved   uint64                     // position of the newest snapshot that was loaded or saved
	waiters btree.Map[uint64, *waiter] // by position: callers that wait until the world reaches it
	// error of folding the event at which the world has stopped; nil while it runs
	failed         error
	broken         chan struct{} // closed when failed is set
	live           *live.Status
	now            func() time.Time
	waits          *waits.History
	archive        *archive.Archive // archive that Archive has set; nil without an archive
	pastTableCache *pastTableCache
	saving         sync.Mutex // locked during Save, so that only one snapshot is written at a time

	eventlog.Pipeline

	backlog  *backlog // backlog of a rebuild in progress; nil without one
	rebuilds int      // number of completed rebuilds of this world

	applied map[string]uint64 // number of applied events by type: see Applied
	traces  *tracing.Recent   // trace contexts of recent events; nil without KeepTraces

	confirmed atomic.Pointer[time.Time] // when it was last confirmed that the world had all events of the log: see Age
	behind    atomic.Pointer[time.Time] // result of the method Behind; nil stands for the zero time
}

// NewWorldOf returns an empty world with tables of the given kinds. The typed fields of its views
// are nil: use TableOf.
func NewWorldOf(kinds ...domain.AnyKind) *World {
	w := &World{folds: map[string]*fold{}, broken: make(chan struct{}), live: live.NewStatus(time.Now()), now: time.Now,
		waits: waits.New(), pastTableCache: newPastTableCache(), applied: map[string]uint64{}}
	for _, kind := range kinds {
		w.folds[kind.CollectionID()] = newFold(kind)
	}
	return w
}

// Live returns the live status of nodes, jobs and replicas, which is not in the log.
func (w *World) Live() *live.Status { return w.live }

// SetClock replaces the clock, time.Now. Tests call it before the first event, to simulate control
// planes whose clocks differ.
func (w *World) SetClock(now func() time.Time) { w.now = now }

// Run follows the log and folds its events until ctx is done, reading the log fails, or an event
// does not fold. After a failure to read the log, Run can be called again.
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

// Apply folds the event at the next position. For an event at another position it returns an error,
// with code DataLoss when events before it are missing. An event that cannot be folded stops the
// world: Apply and WaitFor return this error from then on.
func (w *World) Apply(e eventlog.Event) error {
	fold, decoded, err := w.decode(e)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.failed != nil:
		return w.failed
	case err == nil && e.Position <= w.at.Position:
		return fmt.Errorf("event %d (%s of %s) comes after event %d: events are folded once and in order", e.Position, e.Type,
			e.Name, w.at.Position)
	case err == nil && e.Position != w.at.Position+1:
		return eventlog.Follows(e, w.at.Position)
	case err == nil:
		previous := fold.version(e.Name)
		if err = w.change(fold, e, decoded); err == nil {
			archiveEvent(w.archive, fold, e, previous)
		}
	}
	if _, registered := decoded.(domain.NodeRegistered); registered && err == nil {
		w.live.Registered(e.Name, w.now())
	}
	if err != nil {
		w.failed = fmt.Errorf("event %d (%s of %s) cannot be applied: %w", e.Position, e.Type, e.Name, err)
		close(w.broken)
		return w.failed
	}
	w.at = eventlog.Checkpoint{Position: e.Position, EventID: e.ID}
	w.applied[e.Type]++
	w.Pipeline.Applied(e.Name, e.Position)
	w.traces.Add(e.Name, e.Trace, e.Time, w.now())
	w.backlog.add(e)
	w.wake()
	return nil
}

// Applied returns how many events of each type Apply has applied. It does not count the events
// before the snapshot that the world was loaded from.
func Applied(w *World) map[string]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.applied)
}

func (w *World) decode(e eventlog.Event) (fold *fold, decoded any, err error) {
	fold = w.folds[e.Name.Collection()]
	if fold == nil {
		return nil, nil, fmt.Errorf("unknown collection %q: the event was written by a newer version of anneal",
			e.Name.Collection())
	}
	decoded, err = fold.kind.DecodeEvent(e.Record)
	return fold, decoded, err
}

// View returns a view of the world at its current position.
func (w *World) View() *View {
	w.mu.Lock()
	defer w.mu.Unlock()
	return shareView(w)
}

// shareView returns a view of the world at its current position. The caller holds the lock.
func shareView(w *World) *View {
	status := w.live.View()
	if w.view != nil && w.view.Position == w.at.Position && w.view.Live.Version() == status.Version() {
		return w.view
	}
	v := &View{Checkpoint: w.at, tables: make(map[string]*table, len(w.folds)), Live: status,
		Waits: w.waits.Share(), rebuilds: w.rebuilds}
	for collection, fold := range w.folds {
		v.tables[collection] = fold.share()
	}
	if w.fields != nil {
		w.fields(v)
	}
	w.view = v
	return v
}

// Position returns the position of the last event that was folded.
func (w *World) Position() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at.Position
}

// Lookup implements eventlog.Rows. The row of a deleted resource has no state, but has a version,
// which an append must expect when it creates the resource again.
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

// After implements eventlog.Rows: it returns the state after an event, and does not change the
// world.
func (w *World) After(name domain.Name, state any, record domain.Record) (any, error) {
	fold := w.folds[name.Collection()]
	if fold == nil {
		return nil, fmt.Errorf("unknown collection %q of the resource %s", name.Collection(), name)
	}
	return fold.kind.FoldRecord(state, record)
}
