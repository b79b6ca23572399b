package projections

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/btree"

	"anneal/domain"
)

// A Row is the row of one resource in a table.
type Row[S any] = domain.Row[S]

// A Table holds the rows of one kind at one position of the log. It is immutable and safe for
// concurrent use.
type Table[S domain.State] table

// A table is a Table of any kind of resource. Its rows are *Row[S], where S is the state type of
// the kind.
type table struct {
	kind         domain.AnyKind
	rows         *btree.Map[domain.Name, cell]
	byCreateTime *btree.BTreeG[createTimeKey]
	blocks       *btree.BTreeG[*block]
	pivot        block                           // reused key for lookups by the goroutine that changes the table
	cow          *cowContext                     // identifies the blocks that the table may change without copying them
	accounts     *btree.Map[string, accountRows] // the accounts that have rows, by ID
	deleted      *btree.Map[domain.Name, uint64] // by name of a deleted resource: position of the event that deleted it
	// openJobs holds the unfinished jobs, and outputs their reservations by model. Both are nil for other
	// kinds, and in views of an earlier position. The slices in outputs are never modified.
	openJobs *btree.Map[domain.Name, openJob]
	outputs  *btree.Map[domain.Name, []Reservation]
	loaded   []createTimeKey // keys of rows that are not in byCreateTime yet: see load
	// finds the rows in the archive; nil unless the table is one of a view of an earlier position
	past *pastRows
}

// listedIn returns the account whose lists have the row with a name: the account of the resource, or
// account system for accounts, which the operator lists. The rows of an account, elsewhere in this
// package, are those that are listed in it.
func (t *table) listedIn(name domain.Name) string {
	if t.kind.CollectionID() == domain.Accounts.Collection {
		return domain.System
	}
	return name.Account()
}

// accountRows is the ID of an account and the number of its rows in a table.
type accountRows struct {
	id   *string
	rows int
}

// A cell is a row and the number of its slot. An account has as many slots as rows: slot i is row
// i%BlockRows in block i/BlockRows of the account.
type cell struct {
	row  domain.AnyRow
	slot int
}

func newTable(kind domain.AnyKind) *table {
	t := &table{kind: kind, rows: new(btree.Map[domain.Name, cell]), byCreateTime: newCreateTimeIndex(),
		blocks: newBlocks(), cow: new(cowContext), accounts: new(btree.Map[string, accountRows]),
		deleted: new(btree.Map[domain.Name, uint64])}
	if domain.IsJob(kind) {
		t.openJobs, t.outputs = new(btree.Map[domain.Name, openJob]), new(btree.Map[domain.Name, []Reservation])
	}
	return t
}

// copy returns a copy of the table, in constant time, by copy-on-write. Before t is changed again,
// its cow must be replaced.
func (t *table) copy() *table {
	c := &table{kind: t.kind, rows: t.rows.Copy(), byCreateTime: t.byCreateTime.Copy(), blocks: t.blocks.Copy(),
		cow: new(cowContext), accounts: t.accounts.Copy(), deleted: t.deleted.Copy()}
	if t.openJobs != nil {
		c.openJobs, c.outputs = t.openJobs.Copy(), t.outputs.Copy()
	}
	return c
}

// An openJob is the row of an unfinished job, and the name of a model that the job reserves; the
// zero Reservation if it reserves none.
type openJob struct {
	row      domain.AnyRow
	reserves Reservation
}

// index updates openJobs and outputs after a change of a row.
func (t *table) index(row domain.AnyRow) {
	if t.openJobs == nil {
		return
	}
	if !isUnfinished(row) {
		t.unindex(row.Key())
		return
	}
	job, _ := JobOf(row)
	reserves, _ := reservationOf(job)
	old, _ := t.openJobs.Set(job.Name, openJob{row, reserves})
	if old.reserves != reserves {
		t.unreserve(old.reserves)
		if reserves.Model != "" {
			all, _ := t.outputs.Get(reserves.Model)
			t.outputs.Set(reserves.Model, append(slices.Clip(all), reserves))
		}
	}
}

// unindex removes a job from openJobs and outputs.
func (t *table) unindex(job domain.Name) {
	if t.openJobs == nil {
		return
	}
	old, _ := t.openJobs.Delete(job)
	t.unreserve(old.reserves)
}

// unreserve removes a reservation from outputs; nothing if it is zero.
func (t *table) unreserve(r Reservation) {
	if r.Model == "" {
		return
	}
	all, _ := t.outputs.Get(r.Model)
	others := slices.DeleteFunc(slices.Clone(all), func(other Reservation) bool { return other == r })
	if len(others) == 0 {
		t.outputs.Delete(r.Model)
	} else {
		t.outputs.Set(r.Model, others)
	}
}

func isUnfinished(row domain.AnyRow) bool {
	job, ok := row.Pointer().(domain.Job)
	return ok && job.Life().Unfinished()
}

// unfinished yields the rows of unfinished jobs of an account, or of all accounts if account is
// everyAccount, ordered by name.
func (t *table) unfinished(account string) iter.Seq[domain.AnyRow] {
	every := account == everyAccount
	return func(yield func(domain.AnyRow) bool) {
		if t.openJobs == nil {
			rows := t.all()
			if !every {
				rows = t.in(account)
			}
			for row := range rows {
				if isUnfinished(row) && !yield(row) {
					return
				}
			}
			return
		}
		first := domain.Name("")
		if !every {
			first = t.firstName(account)
		}
		t.openJobs.Ascend(first, func(name domain.Name, job openJob) bool {
			return (every || t.listedIn(name) == account) && yield(job.row)
		})
	}
}

// state returns a pointer to the state of a resource. The result is false when the resource does
// not exist.
func (t *table) state(name domain.Name) (any, bool) {
	row, ok := t.row(name)
	if !ok {
		return nil, false
	}
	return row.Pointer(), true
}

// row returns the row of a resource. The result is false when the resource does not exist.
func (t *table) row(name domain.Name) (domain.AnyRow, bool) {
	if t.past != nil {
		return t.past.row(name)
	}
	one, ok := t.rows.Get(name)
	return one.row, ok
}

// count returns the number of an account's rows.
func (t *table) count(account string) int {
	t = t.of(account)
	one, _ := t.accounts.Get(account)
	return one.rows
}

// all yields every row, ordered by name.
func (t *table) all() iter.Seq[domain.AnyRow] {
	t = t.of(everyAccount)
	return func(yield func(domain.AnyRow) bool) {
		t.rows.Scan(func(_ domain.Name, one cell) bool { return yield(one.row) })
	}
}

// in yields an account's rows, ordered by name.
func (t *table) in(account string) iter.Seq[domain.AnyRow] {
	t = t.of(account)
	return func(yield func(domain.AnyRow) bool) {
		t.rows.Ascend(t.firstName(account), func(name domain.Name, one cell) bool {
			return t.listedIn(name) == account && yield(one.row)
		})
	}
}

// firstName returns a lower bound of the account's names in the table, which is greater than all
// names of the accounts before it.
func (t *table) firstName(account string) domain.Name {
	collection := t.kind.CollectionID()
	if collection == domain.Accounts.Collection {
		return "" // all accounts are listed in account system
	}
	return domain.NewName(account, collection, "")
}

// put sets the row of a resource. old is the resource's present cell; old.row is nil if the table
// has no row of the resource.
func (t *table) put(row domain.AnyRow, old cell) {
	head := row.Head()
	account, slot := t.listedIn(head.Name), old.slot
	one, _ := t.accounts.Get(account)
	if old.row == nil {
		t.deleted.Delete(head.Name)
		if one.id == nil {
			one.id = new(strings.Clone(account))
		}
		slot = one.rows
		one.rows++
		t.accounts.Set(*one.id, one)
	}
	t.rows.Set(head.Name, cell{row, slot})
	t.byCreateTime.Set(createTimeKey{one.id, head.CreateTime.UnixNano(), row})
	t.setSlot(*one.id, slot, row, true)
	t.index(row)
}

// load adds the row of a resource while a snapshot is loaded. Rows must be added in the order of
// their names, and finish must be called after the last one.
func (t *table) load(row domain.AnyRow) error {
	name := row.Key()
	if last, _, ok := t.rows.Max(); ok && last >= name {
		return fmt.Errorf("the row of %s comes after the row of %s, but rows must be ordered by name", name, last)
	}
	account := t.listedIn(name)
	one, ok := t.accounts.Get(account)
	if !ok {
		one.id = new(strings.Clone(account))
	}
	t.rows.Load(name, cell{row, one.rows})
	t.loaded = append(t.loaded, createTimeKey{one.id, row.Head().CreateTime.UnixNano(), row})
	t.setSlot(*one.id, one.rows, row, true)
	t.index(row)
	one.rows++
	t.accounts.Set(*one.id, one)
	return nil
}

// finish adds the rows that load has added to byCreateTime.
func (t *table) finish() {
	slices.SortFunc(t.loaded, compareCreateTimeKeys)
	for _, one := range t.loaded {
		t.byCreateTime.Load(one)
	}
	t.loaded = nil
}

// remove deletes the row of a resource, whose create time is created. It keeps version, the
// position of the event that deleted the resource.
func (t *table) remove(name domain.Name, created time.Time, version uint64) {
	old, _ := t.rows.Delete(name)
	one, _ := t.accounts.Get(t.listedIn(name))
	t.byCreateTime.Delete(createTimeKey{one.id, created.UnixNano(), old.row})
	t.unindex(name)
	t.freeSlot(*one.id, old.slot, one.rows)
	if one.rows--; one.rows > 0 {
		t.accounts.Set(*one.id, one)
	} else {
		t.accounts.Delete(*one.id)
	}
	t.deleted.Set(name, version)
}

// NewTable returns a table of a kind with rows, whose names must differ.
func NewTable[S domain.State](kind *domain.Kind[S], rows iter.Seq[*Row[S]]) *Table[S] {
	t := newTable(kind)
	for row := range rows {
		t.put(row, cell{})
	}
	return (*Table[S])(t)
}

// TableOf returns the view's table of a kind.
func TableOf[S domain.State](v *View, kind *domain.Kind[S]) *Table[S] {
	t := v.tables[kind.Collection]
	if t == nil {
		panic(fmt.Sprintf("projections: the world has no table of the kind %s", kind.Collection))
	}
	return (*Table[S])(t)
}

// RowsOf yields the rows of a kind, ordered by name.
func (v *View) RowsOf(kind domain.AnyKind) iter.Seq[domain.AnyRow] {
	return v.tables[kind.CollectionID()].all()
}

// TableVersion returns a comparable value. If it is equal for two views, no row of the kind has
// changed between them.
func (v *View) TableVersion(kind domain.AnyKind) any { return v.tables[kind.CollectionID()] }

// Collection returns the collection of the table's resources.
func (t *Table[S]) Collection() string { return t.kind.CollectionID() }

// Of returns a table that has an account's rows in memory. A table of an earlier position finds the
// rows when Of, or a method that yields rows, is called for the first time: see World.ViewAt.
func (t *Table[S]) Of(account string) *Table[S] { return (*Table[S])((*table)(t).of(account)) }

// Get returns the row of a resource. The result is false when the resource does not exist.
func (t *Table[S]) Get(name domain.Name) (*Row[S], bool) {
	row, ok := (*table)(t).row(name)
	if !ok {
		return nil, false
	}
	return row.(*Row[S]), true
}

// Version returns the position of a resource's last event, also when the event deleted the
// resource; 0 when the resource never existed.
func (t *Table[S]) Version(name domain.Name) uint64 {
	if t.past != nil {
		return t.past.version(name)
	}
	if row, ok := t.Get(name); ok {
		return row.Version
	}
	version, _ := t.deleted.Get(name)
	return version
}

// Len returns the number of rows of all accounts.
func (t *Table[S]) Len() int { return (*table)(t).of(everyAccount).rows.Len() }

// Count returns the number of an account's rows.
func (t *Table[S]) Count(account string) int {
	return (*table)(t).count(account)
}

// All yields every row, ordered by name.
func (t *Table[S]) All() iter.Seq[*Row[S]] {
	t = t.Of(everyAccount)
	return func(yield func(*Row[S]) bool) {
		t.rows.Scan(func(_ domain.Name, one cell) bool { return yield(one.row.(*Row[S])) })
	}
}

// In yields an account's rows, ordered by name.
func (t *Table[S]) In(account string) iter.Seq[*Row[S]] {
	t = t.Of(account)
	return func(yield func(*Row[S]) bool) {
		t.rows.Ascend((*table)(t).firstName(account), func(name domain.Name, one cell) bool {
			return (*table)(t).listedIn(name) == account && yield(one.row.(*Row[S]))
		})
	}
}

// NamedAfter yields the rows of an account whose names are greater than last, ordered by name. The
// table need not have a row with the name last.
func (t *Table[S]) NamedAfter(account string, last domain.Name) iter.Seq[*Row[S]] {
	t = t.Of(account)
	return func(yield func(*Row[S]) bool) {
		t.rows.Ascend(last, func(name domain.Name, one cell) bool {
			return name == last || (*table)(t).listedIn(name) == account && yield(one.row.(*Row[S]))
		})
	}
}
