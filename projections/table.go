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

// Row is the row of one resource in a table.
type Row[S any] = domain.Row[S]

// A Table holds the rows of one kind at one position of the log. It is immutable and safe for
// concurrent use.
type Table[S domain.State] table

// table is a Table of any kind. Its rows are *Row[S], where S is the state type of the kind.
type table struct {
	kind   domain.AnyKind
	rows   *btree.Map[domain.Name, cell]
	ages   *btree.Map[string, domain.AnyRow] // by account, then create time, then name: see ageKey
	counts *btree.Map[string, int]           // rows per account
	gone   *btree.Map[domain.Name, uint64]   // version of each deleted resource
}

// An cell is a row, and the generation of the table that wrote it: see fold.change.
type cell struct {
	row        domain.AnyRow
	generation uint64
}

func newTable(kind domain.AnyKind) *table {
	return &table{kind, new(btree.Map[domain.Name, cell]), new(btree.Map[string, domain.AnyRow]),
		new(btree.Map[string, int]), new(btree.Map[domain.Name, uint64])}
}

// copy returns a table that later changes of t do not reach. It costs the same for any number of
// rows.
func (t *table) copy() *table {
	return &table{t.kind, t.rows.Copy(), t.ages.Copy(), t.counts.Copy(), t.gone.Copy()}
}

// state returns a pointer to a resource's state; false when the resource does not exist.
func (t *table) state(name domain.Name) (any, bool) {
	one, ok := t.rows.Get(name)
	if !ok {
		return nil, false
	}
	return one.row.Pointer(), true
}

// count returns the number of rows of an account.
func (t *table) count(account string) int {
	n, _ := t.counts.Get(account)
	return n
}

// all yields every row in the order of names.
func (t *table) all() iter.Seq[domain.AnyRow] {
	return func(yield func(domain.AnyRow) bool) {
		t.rows.Scan(func(_ domain.Name, one cell) bool { return yield(one.row) })
	}
}

// in yields the rows of an account in the order of names.
func (t *table) in(account string) iter.Seq[domain.AnyRow] {
	return func(yield func(domain.AnyRow) bool) {
		t.rows.Ascend(t.firstName(account), func(name domain.Name, one cell) bool {
			return name.Account() == account && yield(one.row)
		})
	}
}

// firstName returns a name that sorts before or equal to all that the account has in the table.
func (t *table) firstName(account string) domain.Name {
	collection := t.kind.CollectionID()
	if collection == domain.Accounts.Collection {
		return domain.NewName("", collection, account)
	}
	return domain.NewName(account, collection, "")
}

// put sets the row of a name.
func (t *table) put(one cell, isNew bool) {
	head := one.row.Head()
	t.rows.Set(head.Name, one)
	t.ages.Set(ageKey(head.Name, head.CreateTime), one.row)
	if isNew {
		t.gone.Delete(head.Name)
		t.counts.Set(head.Name.Account(), t.count(head.Name.Account())+1)
	}
}

// remove deletes a row that was created at a time, and keeps its version.
func (t *table) remove(name domain.Name, created time.Time, version uint64) {
	t.rows.Delete(name)
	t.ages.Delete(ageKey(name, created))
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

// RowsOf yields the rows of a kind in the order of names.
func (v *View) RowsOf(kind domain.AnyKind) iter.Seq[domain.AnyRow] {
	return v.tables[kind.CollectionID()].all()
}

// TableVersion returns a value that differs between two views when a row of the kind has changed
// between them.
func (v *View) TableVersion(kind domain.AnyKind) any { return v.tables[kind.CollectionID()] }

// Collection is the collection whose resources the table holds.
func (t *Table[S]) Collection() string { return t.kind.CollectionID() }

// Get returns the row of a resource; false when it does not exist.
func (t *Table[S]) Get(name domain.Name) (*Row[S], bool) {
	one, ok := t.rows.Get(name)
	if !ok {
		return nil, false
	}
	return one.row.(*Row[S]), true
}

// Version is the position of the last event of a resource, also when it no
// longer exists; 0 when it never did.
func (t *Table[S]) Version(name domain.Name) uint64 {
	if row, ok := t.Get(name); ok {
		return row.Version
	}
	version, _ := t.gone.Get(name)
	return version
}

// Len is the number of rows.
func (t *Table[S]) Len() int { return t.rows.Len() }

// Count is the number of rows of an account.
func (t *Table[S]) Count(account string) int {
	return (*table)(t).count(account)
}

// All yields every row in the order of names.
func (t *Table[S]) All() iter.Seq[*Row[S]] {
	return func(yield func(*Row[S]) bool) {
		t.rows.Scan(func(_ domain.Name, one cell) bool { return yield(one.row.(*Row[S])) })
	}
}

// In yields the rows of an account in the order of names.
func (t *Table[S]) In(account string) iter.Seq[*Row[S]] {
	return func(yield func(*Row[S]) bool) {
		t.rows.Ascend((*table)(t).firstName(account), func(name domain.Name, one cell) bool {
			return name.Account() == account && yield(one.row.(*Row[S]))
		})
	}
}

// Oldest yields the rows of an account by create time, the oldest first.
func (t *Table[S]) Oldest(account string) iter.Seq[*Row[S]] {
	prefix := account + "\x00"
	return func(yield func(*Row[S]) bool) {
		t.ages.Ascend(prefix, func(key string, row domain.AnyRow) bool {
			return strings.HasPrefix(key, prefix) && yield(row.(*Row[S]))
		})
	}
}

// Newest yields the rows of an account by create time, the newest first.
func (t *Table[S]) Newest(account string) iter.Seq[*Row[S]] {
	prefix, after := account+"\x00", account+"\x01"
	return func(yield func(*Row[S]) bool) {
		t.ages.Descend(after, func(key string, row domain.AnyRow) bool {
			return strings.HasPrefix(key, prefix) && yield(row.(*Row[S]))
		})
	}
}

// CreatedAfter yields the rows of an account by create time and then name, those
// after one, which need not exist; nil is before the first.
func (t *Table[S]) CreatedAfter(account string, after *Row[S]) iter.Seq[*Row[S]] {
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

// CreatedBefore yields the rows of an account by create time, the newest first,
// and then name, those after one in this order; nil is before the first. Of the
// rows of one moment it goes forward, from each moment to the next backward.
func (t *Table[S]) CreatedBefore(account string, after *Row[S]) iter.Seq[*Row[S]] {
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

// momentBefore is what the age keys of an account's last moment before a key
// have in common; "" when there is none.
func (t *Table[S]) momentBefore(account, before string) (moment string) {
	t.ages.Descend(before, func(key string, _ domain.AnyRow) bool {
		if strings.HasPrefix(key, account+"\x00") {
			moment = key[:len(account)+1+timeBytes]
		}
		return false
	})
	return moment
}

const timeBytes = 8 // that a time takes in an age key

// ageKey sorts by account, then create time, then name: ids never hold a byte
// below '-', so 0 ends them.
func ageKey(name domain.Name, created time.Time) string {
	account := name.Account()
	key := make([]byte, 0, len(account)+1+8+len(name))
	key = append(append(key, account...), 0)
	key = binary.BigEndian.AppendUint64(key, uint64(created.UnixNano())^(1<<63)) // so that times before 1970 sort first
	return string(append(key, name...))
}

// Rank is the number of rows before the account's first.
func (t *Table[S]) Rank(account string) int {
	first := (*table)(t).firstName(account)
	return sort.Search(t.rows.Len(), func(i int) bool {
		name, _, _ := t.rows.GetAt(i)
		return name >= first
	})
}

// From yields n rows in the order of names, the one of that rank first.
func (t *Table[S]) From(rank, n int) iter.Seq[*Row[S]] {
	return func(yield func(*Row[S]) bool) {
		first, _, _ := t.rows.GetAt(rank)
		t.rows.Ascend(first, func(_ domain.Name, one cell) bool {
			n--
			return yield(one.row.(*Row[S])) && n > 0
		})
	}
}

// NamedAfter yields the rows of an account whose names come after one, which
// need not exist.
func (t *Table[S]) NamedAfter(account string, after domain.Name) iter.Seq[*Row[S]] {
	return func(yield func(*Row[S]) bool) {
		t.rows.Ascend(after, func(name domain.Name, one cell) bool {
			return name == after || name.Account() == account && yield(one.row.(*Row[S]))
		})
	}
}
