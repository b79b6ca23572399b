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
)

// Limits of the tables of earlier positions.
const (
	// maxPastRows is the maximum number of rows that are folded to build one table, from at most 10
	// times as many events. It is also the maximum number of rows that all tables in memory, except
	// the most recently used one, together do not share with the present table.
	maxPastRows   = 200_000
	maxPastTables = 32 // maximum number of tables of earlier positions in memory
	maxPastBuilds = 2  // maximum number of tables of earlier positions that are built concurrently
)

// ReasonTooManyChanges is the reason of the error for a list at an earlier position after which too
// many resources have changed.
const ReasonTooManyChanges = "TOO_MANY_CHANGES_SINCE"

// A pastKey identifies a table with the rows of an account at an earlier position.
type pastKey struct {
	position   uint64
	rebuilds   int // View.rebuilds of the view: a rebuild of the world invalidates earlier tables
	collection string
	account    string
}

// A pastTableCache keeps the tables of earlier positions that were used last. A table that several
// requests need at the same time is built once.
type pastTableCache struct {
	builds chan struct{} // semaphore: has an element for each build in progress
	copies sync.Mutex    // held during table.copy of tables that views share: it changes copy-on-write marks in them
	limit  int           // maximum of rows: maxPastRows, except in tests

	mu     sync.Mutex
	tables map[pastKey]*pastTable
	recent list.List // *pastTable elements, the most recently used first
	rows   int       // sum of the field rows of all tables that are completely built
}

type pastTable struct {
	key     pastKey
	built   chan struct{} // closed when table or err is set
	waiting int           // number of requests that wait for the table
	cancel  func()        // cancels the context of the build
	table   *table
	rows    int // number of rows that are not shared with the present table
	err     error
	element *list.Element
}

func newPastTableCache() *pastTableCache {
	return &pastTableCache{builds: make(chan struct{}, maxPastBuilds), limit: maxPastRows,
		tables: map[pastKey]*pastTable{}}
}

// table returns the table with a key. It calls build unless the table is in memory or is being
// built for another caller. It cancels a build when no caller waits for it any more.
func (p *pastTableCache) table(ctx context.Context, key pastKey,
	build func(context.Context) (*table, int, error)) (*table, error) {
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

// leave cancels the build of a table when its last waiting caller has stopped waiting.
func (p *pastTableCache) leave(one *pastTable) {
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

func (p *pastTableCache) build(ctx context.Context, one *pastTable, build func(context.Context) (*table, int, error)) {
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
	if p.tables[one.key] != one { // leave has removed the table, because no caller waits for it
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

// oldestBuilt returns the least recently used table that is built, except the most recently used
// table; nil if there is none.
func (p *pastTableCache) oldestBuilt() *pastTable {
	for e := p.recent.Back(); e != p.recent.Front(); e = e.Prev() {
		select {
		case <-e.Value.(*pastTable).built:
			return e.Value.(*pastTable)
		default:
		}
	}
	return nil
}

func (p *pastTableCache) remove(one *pastTable) {
	p.recent.Remove(one.element)
	delete(p.tables, one.key)
	p.rows -= one.rows
}

// A changedRow is a resource that has changed since a Moment.
type changedRow struct {
	name    domain.Name
	version uint64 // position of one of its events after the Moment
	found   uint64 // position of its last event up to the Moment; 0 when there is none
	row     domain.AnyRow
}

// build returns a table with the rows of an account at the Moment, and the number of its rows that
// the present table does not share. Its rows of other accounts are those of the present.
func (p *pastRows) build(account string) (*table, int, error) {
	parts, later := p.changes(account)
	limit := int64(p.world.pastTableCache.limit)
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
	return p.replace(account, slices.Concat(parts...), later)
}

// A foldBudget counts down how many rows and events the goroutines that build one table may still
// fold.
type foldBudget struct{ rows, events atomic.Int64 }

// changes returns the resources of an account that have changed since the Moment, in as many parts as
// there are processors. Those of a part precede those of the next one by version. The resources whose
// names were first used after the Moment are only counted: later is their number.
func (p *pastRows) changes(account string) (parts [][]changedRow, later int) {
	type result struct {
		changed []changedRow
		later   int
	}
	scanned := scanBlocks(p, account, func(blocks []*block) (r result) {
		firsts := p.world.archive.Firsts()
		for _, b := range blocks {
			for _, row := range b.rows {
				switch created, last := row.Versions(); {
				case last <= p.position:
				case created <= p.position:
					r.changed = append(r.changed, changedRow{name: row.Key(), version: last})
				case firsts.Has(created):
					r.later++
				default: // a later resource of the same name: search before its creation
					r.changed = append(r.changed, changedRow{name: row.Key(), version: created})
				}
			}
		}
		return r
	})
	var deleted []changedRow
	first := p.present.firstName(account)
	if account == everyAccount {
		first = ""
	}
	p.present.deleted.Ascend(first, func(name domain.Name, version uint64) bool {
		if account != everyAccount && p.present.listedIn(name) != account {
			return false
		}
		if version > p.position {
			deleted = append(deleted, changedRow{name: name, version: version})
		}
		return true
	})
	scanned = append(scanned, result{changed: deleted})
	var last uint64 // newest version
	for _, r := range scanned {
		later += r.later
		for _, one := range r.changed {
			last = max(last, one.version)
		}
	}
	parts = make([][]changedRow, runtime.GOMAXPROCS(0))
	for _, r := range scanned {
		for _, one := range r.changed {
			at := (one.version - p.position - 1) * uint64(len(parts)) / (last - p.position)
			parts[at] = append(parts[at], one)
		}
	}
	return parts, later
}

// scanBlocks calls f concurrently with parts of the blocks of an account, and returns the results.
func scanBlocks[T any](p *pastRows, account string, f func([]*block) T) []T {
	var blocks []*block
	p.present.blocks.Ascend(&block{account: account}, func(b *block) bool {
		if account != everyAccount && b.account != account {
			return false
		}
		blocks = append(blocks, b)
		return true
	})
	results := make([]T, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for i := range results {
		all.Go(func() { results[i] = f(blocks[i*len(blocks)/len(results) : (i+1)*len(blocks)/len(results)]) })
	}
	all.Wait()
	return results
}

// A foldStep is an event that is folded into a changedRow.
type foldStep struct {
	position uint64
	row      int // index of the changedRow in the list of changed rows
	first    bool
}

// foldRows sets found and row of changed. It reads the events of all rows in the order of the log,
// so that each frame of the archive is decompressed once. left limits how much is folded.
func (p *pastRows) foldRows(changed []changedRow, left *foldBudget) error {
	versions := make([]uint64, len(changed))
	for i, one := range changed {
		versions[i] = one.version
	}
	var steps []foldStep
	err := p.world.archive.Walk(versions, p.position, func(row int, at uint64, oldest bool) error {
		steps = append(steps, foldStep{at, row, oldest})
		rows := int64(0)
		if one := &changed[row]; one.found == 0 {
			one.found, rows = at, 1
		}
		if left.rows.Add(-rows) < 0 || left.events.Add(-1) < 0 {
			return &domain.Error{Code: domain.OutOfRange, Reason: ReasonTooManyChanges, Message: fmt.Sprintf(
				"too many %s have changed since position %d for a list: read single resources as of the position, or list "+
					"as of a later position", p.present.kind.CollectionID(), p.position)}
		}
		return p.ctx.Err()
	})
	if err != nil {
		return err
	}
	for _, step := range slices.Backward(steps) {
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

// replace returns a copy of the present table in which the changed rows are replaced, and the number
// of rows that the two tables do not share. later is the number of rows that did not exist yet. If
// many rows have changed, it builds a new table from the unchanged and the changed rows instead.
func (p *pastRows) replace(account string, changed []changedRow, later int) (*table, int, error) {
	rows := p.present.count(account)
	if account == everyAccount {
		rows = p.present.rows.Len()
	}
	if 3*(len(changed)+later) > rows { // removing a row takes some 4 times as long as loading one
		t, err := p.rebuilt(account, changed)
		if err != nil {
			return nil, 0, err
		}
		return t, t.rows.Len() + t.deleted.Len(), nil
	}
	p.world.pastTableCache.copies.Lock()
	t := p.present.copy()
	p.world.pastTableCache.copies.Unlock()
	for _, some := range p.rowsOf(account, func(version uint64) bool { return version > p.position }) {
		for _, row := range some {
			head := row.Head()
			t.remove(head.Name, head.CreateTime, 0)
			t.deleted.Delete(head.Name)
		}
	}
	for _, one := range changed {
		t.deleted.Delete(one.name)
		switch {
		case one.row != nil:
			t.put(one.row, cell{})
		case one.found > 0:
			t.deleted.Set(one.name, one.found)
		}
	}
	return t, len(changed) + later, nil
}

// rebuilt returns a new table of an account's unchanged and changed rows.
func (p *pastRows) rebuilt(account string, changed []changedRow) (*table, error) {
	t := newTable(p.present.kind)
	first := p.present.firstName(account)
	if account == everyAccount {
		first = ""
	}
	belongs := func(name domain.Name) bool { return account == everyAccount || p.present.listedIn(name) == account }
	p.present.deleted.Ascend(first, func(name domain.Name, version uint64) bool {
		if !belongs(name) {
			return false
		}
		if version <= p.position {
			t.deleted.Set(name, version)
		}
		return true
	})
	for _, one := range changed {
		if one.row == nil && one.found > 0 {
			t.deleted.Set(one.name, one.found)
		}
	}
	changed = slices.DeleteFunc(changed, func(one changedRow) bool { return one.row == nil })
	slices.SortFunc(changed, func(a, b changedRow) int { return cmp.Compare(a.name, b.name) })
	// the present rows are ordered by name, too, and load needs all rows in this order
	var err error
	loadBefore := func(name domain.Name) {
		for err == nil && len(changed) > 0 && changed[0].name < name {
			err, changed = t.load(changed[0].row), changed[1:]
		}
	}
	p.present.rows.Ascend(first, func(name domain.Name, one cell) bool {
		if !belongs(name) {
			return false
		}
		if _, last := one.row.Versions(); last <= p.position {
			if loadBefore(name); err == nil {
				err = t.load(one.row)
			}
		}
		return err == nil
	})
	for err == nil && len(changed) > 0 {
		err, changed = t.load(changed[0].row), changed[1:]
	}
	if err != nil {
		return nil, err
	}
	t.finish()
	return t, nil
}

// rowsOf returns the present rows of an account whose versions match.
func (p *pastRows) rowsOf(account string, match func(version uint64) bool) [][]domain.AnyRow {
	return scanBlocks(p, account, func(blocks []*block) (all []domain.AnyRow) {
		for _, b := range blocks {
			for _, row := range b.rows {
				if _, last := row.Versions(); match(last) {
					all = append(all, row)
				}
			}
		}
		return all
	})
}
