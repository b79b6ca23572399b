package projections

import (
	"encoding/binary"
	"fmt"
	"iter"
	"sort"
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

// table is a Table of any kind. Its rows are *Row[S], where S is the state type of the kind.
type table struct {
	kind   domain.AnyKind
	rows   *btree.Map[domain.Name, cell]
	ages   *btree.Map[string, domain.AnyRow] // by account, then create time, then name: see ageKey
	counts *btree.Map[string, int]           // number of rows, by account
	gone   *btree.Map[domain.Name, uint64]   // version of each deleted resource
	// open has the unfinished jobs; nil for other kinds, and in views of an earlier position.
	open *btree.Map[domain.Name, domain.AnyRow]
	past *pastRows // of a view of an earlier position; it finds the rows instead
}

// A cell is a row, and the value of fold.generation when the row was written: see fold.change.
type cell struct {
	row        domain.AnyRow
	generation uint64
}

func newTable(kind domain.AnyKind) *table {
	t := &table{kind: kind, rows: new(btree.Map[domain.Name, cell]), ages: new(btree.Map[string, domain.AnyRow]),
		counts: new(btree.Map[string, int]), gone: new(btree.Map[domain.Name, uint64])}
	if domain.IsJob(kind) {
		t.open = new(btree.Map[domain.Name, domain.AnyRow])
	}
	return t
}

// copy returns a copy-on-write copy of the table, in constant time.
func (t *table) copy() *table {
	c := &table{kind: t.kind, rows: t.rows.Copy(), ages: t.ages.Copy(), counts: t.counts.Copy(), gone: t.gone.Copy()}
	if t.open != nil {
		c.open = t.open.Copy()
	}
	return c
}

// index keeps the index of unfinished jobs up to date after a change of a row.
func (t *table) index(row domain.AnyRow) {
	if t.open == nil {
		return
	}
	if isUnfinished(row) {
		t.open.Set(row.Head().Name, row)
	} else {
		t.open.Delete(row.Head().Name)
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
		if t.open == nil {
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
		t.open.Ascend(first, func(name domain.Name, row domain.AnyRow) bool {
			return (every || name.Account() == account) && yield(row)
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

// count returns the number of rows of an account.
func (t *table) count(account string) int {
	t = t.of(account)
	n, _ := t.counts.Get(account)
	return n
}

// all yields every row, ordered by name.
func (t *table) all() iter.Seq[domain.AnyRow] {
	t = t.of(everyAccount)
	return func(yield func(domain.AnyRow) bool) {
		t.rows.Scan(func(_ domain.Name, one cell) bool { return yield(one.row) })
	}
}

// in yields the rows of an account, ordered by name.
func (t *table) in(account string) iter.Seq[domain.AnyRow] {
	t = t.of(account)
	return func(yield func(domain.AnyRow) bool) {
		t.rows.Ascend(t.firstName(account), func(name domain.Name, one cell) bool {
			return name.Account() == account && yield(one.row)
		})
	}
}

// firstName returns a name that is not greater than any name of the account in the table, and
// greater than all names of the accounts before.
func (t *table) firstName(account string) domain.Name {
	collection := t.kind.CollectionID()
	if collection == domain.Accounts.Collection {
		return domain.NewName("", collection, account)
	}
	return domain.NewName(account, collection, "")
}

// put sets the row of a resource. isNew reports that the table has no row of the resource.
func (t *table) put(one cell, isNew bool) {
	head := one.row.Head()
	t.rows.Set(head.Name, one)
	t.ages.Set(ageKey(head.Name, head.CreateTime), one.row)
	t.index(one.row)
	if isNew {
		t.gone.Delete(head.Name)
		t.counts.Set(head.Name.Account(), t.count(head.Name.Account())+1)
	}
}

// remove deletes the row of a resource that was created at created, and keeps version, the
// position of the event that deleted the resource.
func (t *table) remove(name domain.Name, created time.Time, version uint64) {
	t.rows.Delete(name)
	t.ages.Delete(ageKey(name, created))
	if t.open != nil {
		t.open.Delete(name)
	}
	if n := t.count(name.Account()); n > 1 {
		t.counts.Set(name.Account(), n-1)
	} else {
		t.counts.Delete(name.Account())
	}
	t.gone.Set(name, version)
}

// TableOf returns the view's table of a kind.
func TableOf[S domain.State](v *View, kind *domain.Kind[S]) *Table[S] {
	t := v.tables[kind.Collection]
	if t == nil {
		panic(fmt.Sprintf("projections: the world does not fold %s", kind.Collection))
	}
	return (*Table[S])(t)
}

// RowsOf yields the rows of a kind, ordered by name.
func (v *View) RowsOf(kind domain.AnyKind) iter.Seq[domain.AnyRow] {
	return v.tables[kind.CollectionID()].all()
}

// TableVersion returns a comparable value that is equal for two views only when no row of the kind
// has changed between the views.
func (v *View) TableVersion(kind domain.AnyKind) any { return v.tables[kind.CollectionID()] }

// Collection returns the collection of the table's resources.
func (t *Table[S]) Collection() string { return t.kind.CollectionID() }

// Of returns a table that has the rows of an account in memory. A table of an earlier position finds
// them when Of, or a method that yields them, is called for the first time: see World.ViewAt.
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
	version, _ := t.gone.Get(name)
	return version
}

// Len returns the number of rows.
func (t *Table[S]) Len() int { return (*table)(t).of(everyAccount).rows.Len() }

// Count returns the number of rows of an account.
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

// In yields the rows of an account, ordered by name.
func (t *Table[S]) In(account string) iter.Seq[*Row[S]] {
	t = t.Of(account)
	return func(yield func(*Row[S]) bool) {
		t.rows.Ascend((*table)(t).firstName(account), func(name domain.Name, one cell) bool {
			return name.Account() == account && yield(one.row.(*Row[S]))
		})
	}
}

// Oldest yields the rows of an account by create time, oldest first.
func (t *Table[S]) Oldest(account string) iter.Seq[*Row[S]] {
	t = t.Of(account)
	prefix := account + "\x00"
	return func(yield func(*Row[S]) bool) {
		t.ages.Ascend(prefix, func(key string, row domain.AnyRow) bool {
			return strings.HasPrefix(key, prefix) && yield(row.(*Row[S]))
		})
	}
}

// Newest yields the rows of an account by create time, newest first.
func (t *Table[S]) Newest(account string) iter.Seq[*Row[S]] {
	t = t.Of(account)
	prefix, after := account+"\x00", account+"\x01"
	return func(yield func(*Row[S]) bool) {
		t.ages.Descend(after, func(key string, row domain.AnyRow) bool {
			return strings.HasPrefix(key, prefix) && yield(row.(*Row[S]))
		})
	}
}

// CreatedAfter yields the rows of an account ordered by create time and then name. It omits the rows
// up to and including after, whose name and create time determine its place in the order; the table
// need not have that row. If after is nil, CreatedAfter yields all rows of the account.
func (t *Table[S]) CreatedAfter(account string, after *Row[S]) iter.Seq[*Row[S]] {
	t = t.Of(account)
	if after == nil {
		return t.Oldest(account)
	}
	prefix, last := account+"\x00", ageKey(after.Name, after.CreateTime)
	return func(yield func(*Row[S]) bool) {
		t.ages.Ascend(last, func(key string, row domain.AnyRow) bool {
			return key == last || strings.HasPrefix(key, prefix) && yield(row.(*Row[S]))
		})
	}
}

// CreatedBefore yields the rows of an account ordered by descending create time and then ascending
// name. Like CreatedAfter, it omits the rows up to and including after, which can be nil. The index is
// ordered by ascending create time, so CreatedBefore reads create times backward, and the rows with
// one create time forward.
func (t *Table[S]) CreatedBefore(account string, after *Row[S]) iter.Seq[*Row[S]] {
	t = t.Of(account)
	return func(yield func(*Row[S]) bool) {
		before := account + "\x01"
		more := true
		if after != nil {
			last := ageKey(after.Name, after.CreateTime)
			before = last[:len(account)+1+timeBytes]
			t.ages.Ascend(last, func(key string, row domain.AnyRow) bool {
				more = key == last || !strings.HasPrefix(key, before) || yield(row.(*Row[S]))
				return more && strings.HasPrefix(key, before)
			})
		}
		for more {
			moment := t.momentBefore(account, before)
			if moment == "" {
				return
			}
			t.ages.Ascend(moment, func(key string, row domain.AnyRow) bool {
				if !strings.HasPrefix(key, moment) {
					return false
				}
				more = yield(row.(*Row[S]))
				return more
			})
			before = moment
		}
	}
}

// momentBefore finds the last create time of the account's rows whose age keys are less than
// before, and returns the prefix that the age keys with this create time have in common; "" when
// there is none.
func (t *Table[S]) momentBefore(account, before string) (moment string) {
	t.ages.Descend(before, func(key string, _ domain.AnyRow) bool {
		if strings.HasPrefix(key, account+"\x00") {
			moment = key[:len(account)+1+timeBytes]
		}
		return false
	})
	return moment
}

const timeBytes = 8 // length of a time in an age key

// ageKey returns the key of a row in table.ages. The keys sort by account, then create time, then
// name. A zero byte ends the account, because IDs contain no byte below '-'.
func ageKey(name domain.Name, created time.Time) string {
	account := name.Account()
	key := make([]byte, 0, len(account)+1+8+len(name))
	key = append(append(key, account...), 0)
	key = binary.BigEndian.AppendUint64(key, uint64(created.UnixNano())^(1<<63)) // times before 1970 sort first
	return string(append(key, name...))
}

// Rank returns the number of rows before the first row of an account, in the order of names.
func (t *Table[S]) Rank(account string) int {
	t = t.Of(everyAccount)
	first := (*table)(t).firstName(account)
	return sort.Search(t.rows.Len(), func(i int) bool {
		name, _, _ := t.rows.GetAt(i)
		return name >= first
	})
}

// From yields at most n rows ordered by name. rank is the number of rows that it skips first.
func (t *Table[S]) From(rank, n int) iter.Seq[*Row[S]] {
	t = t.Of(everyAccount)
	return func(yield func(*Row[S]) bool) {
		first, _, _ := t.rows.GetAt(rank)
		t.rows.Ascend(first, func(_ domain.Name, one cell) bool {
			n--
			return yield(one.row.(*Row[S])) && n > 0
		})
	}
}

// NamedAfter yields the rows of an account whose names are greater than after, ordered by name. The
// table need not have a row with the name after.
func (t *Table[S]) NamedAfter(account string, after domain.Name) iter.Seq[*Row[S]] {
	t = t.Of(account)
	return func(yield func(*Row[S]) bool) {
		t.rows.Ascend(after, func(name domain.Name, one cell) bool {
			return name == after || name.Account() == account && yield(one.row.(*Row[S]))
		})
	}
}
