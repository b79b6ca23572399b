// Package projections answers what is so now: it folds the log into the
// current state of every resource, in memory, and asks it consistent questions.
package projections

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"anneal/domain"
	"anneal/eventlog"
)

// A View is everything at one position of the log, and the pulse of about the
// same moment. It is immutable and safe for concurrent use.
type View struct {
	eventlog.Checkpoint // the last event in it; zero before the first

	Accounts          *Table[domain.Account]
	APIKeys           *Table[domain.APIKey]
	Secrets           *Table[domain.Secret]
	Models            *Table[domain.Model]
	Datasets          *Table[domain.Dataset]
	Evaluators        *Table[domain.Evaluator]
	SupervisedJobs    *Table[domain.SupervisedJob]
	DPOJobs           *Table[domain.DPOJob]
	ReinforcementJobs *Table[domain.ReinforcementJob]
	TrainerJobs       *Table[domain.TrainerJob]
	Shapes            *Table[domain.DeploymentShape]
	Deployments       *Table[domain.Deployment]
	DeployedModels    *Table[domain.DeployedModel]
	Nodes             *Table[domain.Node]
	Quotas            *Table[domain.Quota]
	Live              LiveStatusView

	tables map[string]frozen // by collection
}

// NewWorld makes an empty world, of before the first event.
func NewWorld() *World {
	w := newWorld()
	register(w, domain.Accounts, func(v *View) **Table[domain.Account] { return &v.Accounts })
	register(w, domain.APIKeys, func(v *View) **Table[domain.APIKey] { return &v.APIKeys })
	register(w, domain.Secrets, func(v *View) **Table[domain.Secret] { return &v.Secrets })
	register(w, domain.Models, func(v *View) **Table[domain.Model] { return &v.Models })
	register(w, domain.Datasets, func(v *View) **Table[domain.Dataset] { return &v.Datasets })
	register(w, domain.Evaluators, func(v *View) **Table[domain.Evaluator] { return &v.Evaluators })
	register(w, domain.SupervisedJobs, func(v *View) **Table[domain.SupervisedJob] { return &v.SupervisedJobs })
	register(w, domain.DPOJobs, func(v *View) **Table[domain.DPOJob] { return &v.DPOJobs })
	register(w, domain.ReinforcementJobs, func(v *View) **Table[domain.ReinforcementJob] { return &v.ReinforcementJobs })
	register(w, domain.TrainerJobs, func(v *View) **Table[domain.TrainerJob] { return &v.TrainerJobs })
	register(w, domain.DeploymentShapes, func(v *View) **Table[domain.DeploymentShape] { return &v.Shapes })
	register(w, domain.Deployments, func(v *View) **Table[domain.Deployment] { return &v.Deployments })
	register(w, domain.DeployedModels, func(v *View) **Table[domain.DeployedModel] { return &v.DeployedModels })
	register(w, domain.Nodes, func(v *View) **Table[domain.Node] { return &v.Nodes })
	register(w, domain.Quotas, func(v *View) **Table[domain.Quota] { return &v.Quotas })
	return w
}

// A World follows the log. One goroutine feeds it, with Run or Apply; any
// number read it, and none of them ever waits for another reader.
type World struct {
	mu      sync.Mutex
	folds   map[string]tables // by collection; the map itself never changes
	at      eventlog.Checkpoint
	view    *View                      // the last one lent; it is of now if its position and pulse are
	saved   uint64                     // position of the newest snapshot
	waiters btree.Map[uint64, *waiter] // by the position they wait for
	failed  error                      // why the world stands still
	broken  chan struct{}              // closed when it has failed
	pulse   *LiveStatus
}

func newWorld() *World {
	return &World{folds: map[string]tables{}, broken: make(chan struct{}), pulse: NewLiveStatus(time.Now())}
}

// Live is what is kept aside and not in the log.
func (w *World) Live() *LiveStatus { return w.pulse }

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

func (w *World) decode(e eventlog.Event) (fold tables, decoded any, err error) {
	fold = w.folds[e.Name.Collection()]
	if fold == nil {
		return nil, nil, fmt.Errorf("unknown collection %q: written by a newer version", e.Name.Collection())
	}
	decoded, err = fold.decode(e)
	return fold, decoded, err
}

// View is the world at its present position.
func (w *World) View() *View {
	w.mu.Lock()
	defer w.mu.Unlock()
	pulse := w.pulse.View()
	if w.view != nil && w.view.Position == w.at.Position && w.view.Live.reports == pulse.reports {
		return w.view
	}
	v := &View{Checkpoint: w.at, tables: make(map[string]frozen, len(w.folds)), Live: pulse}
	for _, fold := range w.folds {
		fold.lend(v)
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
// but a version: whoever creates it again must expect that version.
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
	return fold.after(state, record)
}
