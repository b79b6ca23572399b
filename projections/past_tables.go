package projections

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"anneal/domain"
	"anneal/eventlog/archive"
)

// Limits of the tables of earlier positions.
const (
	maxPastRows = 200_000 // rows that one table folds, and that all tables in memory do not share with the
	// present, except the one that was used last; a table folds at most 10 times as many events
	maxPastTables = 32 // tables in memory
	maxPastBuilds = 2  // tables that are built concurrently
)

// ReasonTooManyChanges is the reason of the error for a list whose position is too far from the present.
const ReasonTooManyChanges = "TOO_MANY_CHANGES_SINCE"

// A pastKey identifies a table of an earlier position with the rows of an account.
type pastKey struct {
	position   uint64
	rebuilds   int // see View.rebuilds
	collection string
	account    string
}

// pasts has the tables of earlier positions that were used last. A table that several requests need is
// built once.
type pasts struct {
	builds chan struct{} // has an element for each build in progress
	copies sync.Mutex    // guards table.copy of tables of views, which changes their trees
	limit  int           // see maxPastRows

	mu     sync.Mutex
	tables map[pastKey]*pastTable
	recent list.List // of *pastTable, the last one used in front
	rows   int       // of all tables that are built
}

type pastTable struct {
	key     pastKey
	built   chan struct{} // closed when table or err is set
	waiting int           // requests that wait for the table
	cancel  func()        // ends the build
	table   *table
	rows    int // number of rows that are not shared with the present
	err     error
	element *list.Element
}

func newPasts() *pasts {
	return &pasts{builds: make(chan struct{}, maxPastBuilds), limit: maxPastRows, tables: map[pastKey]*pastTable{}}
}

// table returns the table with a key. It calls build unless the table is in memory or another caller
// builds it. A build ends when no caller waits for it any more.
func (p *pasts) table(ctx context.Context, key pastKey, build func(context.Context) (*table, int, error)) (*table,
	error) {
	p.mu.Lock()
	one := p.tables[key]
	if one != nil {
		p.recent.MoveToFront(one.element)
	} else {
		one = &pastTable{key: key, built: make(chan struct{})}
		one.element = p.recent.PushFront(one)
		p.tables[key] = one
		var building context.Context
		building, one.cancel = context.WithCancel(context.WithoutCancel(ctx))
		go p.build(building, one, build)
	}
	one.waiting++
	p.mu.Unlock()
	defer p.leave(one)
	select {
	case <-one.built:
		return one.table, one.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// leave ends the build of a table for which the last caller has stopped waiting.
func (p *pasts) leave(one *pastTable) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one.waiting--; one.waiting > 0 {
		return
	}
	select {
	case <-one.built:
	default:
		one.cancel()
		p.remove(one) // the next caller starts another build
	}
}

func (p *pasts) build(ctx context.Context, one *pastTable, build func(context.Context) (*table, int, error)) {
	defer one.cancel()
	var t *table
	var rows int
	var err error
	select {
	case p.builds <- struct{}{}:
		t, rows, err = build(ctx)
		<-p.builds
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	one.table, one.err = t, err
	close(one.built)
	if p.tables[one.key] != one { // no caller waits
		return
	}
	one.rows = rows
	p.rows += rows
	if err != nil {
		p.remove(one)
	}
	for p.recent.Len() > 1 && (p.recent.Len() > maxPastTables || p.rows > p.limit) {
		oldest := p.oldestBuilt()
		if oldest == nil {
			return
		}
		p.remove(oldest)
	}
}

// oldestBuilt returns the table that is built and was not used for the longest time; nil if only the
// one that was used last remains.
func (p *pasts) oldestBuilt() *pastTable {
	for e := p.recent.Back(); e != p.recent.Front(); e = e.Prev() {
		select {
		case <-e.Value.(*pastTable).built:
			return e.Value.(*pastTable)
		default:
		}
	}
	return nil
}

func (p *pasts) remove(one *pastTable) {
	p.recent.Remove(one.element)
	delete(p.tables, one.key)
	p.rows -= one.rows
}

// A changedRow is a resource that has changed since a moment.
type changedRow struct {
	name    domain.Name
	version uint64 // position of an event after the moment
	found   uint64 // position of its last event at the moment; 0 when there is none
	row     domain.AnyRow
}

// build returns a table with the rows of an account at the moment, and the number of rows that it does not
// share with the present. Rows of other accounts are those of the present.
func (p *pastRows) build(account string) (*table, int, error) {
	changed := p.changes(account)
	parts := make([][]changedRow, 0, runtime.GOMAXPROCS(0))
	for part := range slices.Chunk(changed, 1+len(changed)/cap(parts)) {
		parts = append(parts, part)
	}
	limit := int64(p.world.pasts.limit)
	left := &foldBudget{}
	left.rows.Store(limit)
	left.events.Store(10 * limit)
	errs := make([]error, len(parts))
	var all sync.WaitGroup
	for i, part := range parts {
		all.Go(func() { errs[i] = p.foldRows(part, left) })
	}
	all.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return nil, 0, errs[i]
	}
	t, rows := p.replace(account, changed)
	return t, rows, nil
}

// A foldBudget has the numbers of rows and events that the parts of a table may still fold.
type foldBudget struct{ rows, events atomic.Int64 }

// changes returns the resources of an account that have changed since the moment, ordered by version.
func (p *pastRows) changes(account string) []changedRow {
	var changed []changedRow
	add := func(name domain.Name, version uint64) bool {
		if account != everyAccount && name.Account() != account {
			return false
		}
		if version > p.position {
			changed = append(changed, changedRow{name: name, version: version})
		}
		return true
	}
	first := p.present.firstName(account)
	if account == everyAccount {
		first = ""
	}
	p.present.rows.Ascend(first, func(name domain.Name, one cell) bool {
		head := one.row.Head()
		if head.CreateVersion > p.position { // the events between are of a resource that was created later
			return add(name, head.CreateVersion)
		}
		return add(name, head.Version)
	})
	p.present.gone.Ascend(first, add)
	slices.SortFunc(changed, func(a, b changedRow) int { return cmp.Compare(a.version, b.version) })
	return changed
}

// A foldStep is an event of a changed row.
type foldStep struct {
	position uint64
	row      int // index of the row
	first    bool
}

// foldRows sets found and row of changed rows. It reads their events in the order of the log, so that each
// part of the archive is decompressed once.
func (p *pastRows) foldRows(changed []changedRow, left *foldBudget) error {
	var steps []foldStep
	finder := p.world.archive.Finder()
	for i := range changed {
		chain, err := p.chainOf(finder, &changed[i])
		if err != nil {
			return err
		}
		if len(chain) == 0 {
			continue
		}
		for j, position := range chain {
			steps = append(steps, foldStep{position, i, j == 0})
		}
		if left.rows.Add(-1) < 0 || left.events.Add(-int64(len(chain))) < 0 {
			return &domain.Error{Code: domain.OutOfRange, Reason: ReasonTooManyChanges, Message: fmt.Sprintf(
				"too many %s have changed since position %d for a list: read single resources as of the position, or list "+
					"as of a later one", p.present.kind.CollectionID(), p.position)}
		}
	}
	slices.SortFunc(steps, func(a, b foldStep) int { return cmp.Compare(a.position, b.position) })
	for _, step := range steps {
		one := &changed[step.row]
		err := p.ctx.Err()
		if err == nil {
			one.row, err = p.foldEvent(one.name, one.row, step.position, step.first)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// chainOf sets found of a changed row, and returns the positions of the events from which the row is
// folded: none if it had no event at the moment.
func (p *pastRows) chainOf(finder *archive.Finder, one *changedRow) (chain []uint64, err error) {
	if err = p.ctx.Err(); err != nil {
		return nil, err
	}
	if one.found, err = finder.Find(one.version, p.position); err != nil || one.found == 0 {
		return nil, err
	}
	return p.world.archive.Chain(one.found)
}

// replace returns the present table with the rows of changed resources replaced, and the number of rows
// that it does not share with the present. A table most of whose rows have changed is built from its other
// rows.
func (p *pastRows) replace(account string, changed []changedRow) (*table, int) {
	rows := p.present.count(account)
	if account == everyAccount {
		rows = p.present.rows.Len()
	}
	rebuilt := 2*len(changed) > rows
	var t *table
	if rebuilt {
		t = newTable(p.present.kind)
		for row := range p.unchanged(account) {
			t.put(row, cell{})
		}
		p.present.gone.Scan(func(name domain.Name, version uint64) bool {
			if version <= p.position && (account == everyAccount || name.Account() == account) {
				t.gone.Set(name, version)
			}
			return true
		})
	} else {
		p.world.pasts.copies.Lock()
		t = p.present.copy()
		p.world.pasts.copies.Unlock()
	}
	for _, one := range changed {
		if !rebuilt { // otherwise t has only unchanged rows
			if old, exists := t.rows.Get(one.name); exists {
				t.remove(one.name, old.row.Head().CreateTime, 0)
			}
			t.gone.Delete(one.name)
		}
		switch {
		case one.row != nil:
			t.put(one.row, cell{})
		case one.found > 0:
			t.gone.Set(one.name, one.found)
		}
	}
	if rebuilt {
		return t, t.rows.Len() + t.gone.Len()
	}
	return t, len(changed)
}

// unchanged yields the rows of an account that have not changed since the moment.
func (p *pastRows) unchanged(account string) func(yield func(domain.AnyRow) bool) {
	rows := p.present.in(account)
	if account == everyAccount {
		rows = p.present.all()
	}
	return func(yield func(domain.AnyRow) bool) {
		for row := range rows {
			if row.Head().Version <= p.position && !yield(row) {
				return
			}
		}
	}
}
