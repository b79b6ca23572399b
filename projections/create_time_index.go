package projections

import (
	"cmp"
	"iter"
	"math"
	"strings"

	"github.com/tidwall/btree"

	"anneal/domain"
)

// A createTimeKey is an element of table.byCreateTime, the index of a table's rows by account, then
// create time, then name.
type createTimeKey struct {
	// points to accountRows.id: equal pointers mean the same account, so that the IDs need no
	// comparison
	account *string
	created int64 // create time of the row, in nanoseconds since 1970
	row     domain.AnyRow
}

func newCreateTimeIndex() *btree.BTreeG[createTimeKey] {
	before := func(a, b createTimeKey) bool { return compareCreateTimeKeys(a, b) < 0 }
	return btree.NewBTreeGOptions(before, btree.Options{NoLocks: true})
}

func compareCreateTimeKeys(a, b createTimeKey) int {
	switch {
	case a.account != b.account:
		return strings.Compare(*a.account, *b.account)
	case a.created != b.created:
		return cmp.Compare(a.created, b.created)
	}
	return cmp.Compare(a.row.Key(), b.row.Key())
}

// firstCreateTimeKey returns a key that is not greater than the keys of the account's rows that
// were created at or after the given time. The account must have rows.
func (t *table) firstCreateTimeKey(account string, created int64) createTimeKey {
	one, _ := t.accounts.Get(account)
	return createTimeKey{one.id, created, t.kind.NewRow(t.firstName(account))}
}

// Oldest yields the rows of an account by create time, oldest first.
func (t *Table[S]) Oldest(account string) iter.Seq[*Row[S]] {
	t = t.Of(account)
	return func(yield func(*Row[S]) bool) {
		if t.Count(account) == 0 {
			return
		}
		first := (*table)(t).firstCreateTimeKey(account, math.MinInt64)
		t.byCreateTime.Ascend(first, func(a createTimeKey) bool {
			return a.account == first.account && yield(a.row.(*Row[S]))
		})
	}
}

// Newest yields the rows of an account by create time, newest first.
func (t *Table[S]) Newest(account string) iter.Seq[*Row[S]] {
	t = t.Of(account)
	return func(yield func(*Row[S]) bool) {
		if t.Count(account) == 0 {
			return
		}
		last := (*table)(t).firstCreateTimeKey(account, math.MaxInt64)
		t.byCreateTime.Descend(last, func(a createTimeKey) bool {
			return a.account == last.account && yield(a.row.(*Row[S]))
		})
	}
}

// CreatedAfter yields the rows of an account ordered by create time and then name. It begins after
// the row last, of which only the name and the create time are used, so that the table need not
// have this row. If last is nil, CreatedAfter yields all rows of the account.
func (t *Table[S]) CreatedAfter(account string, last *Row[S]) iter.Seq[*Row[S]] {
	t = t.Of(account)
	if last == nil {
		return t.Oldest(account)
	}
	return func(yield func(*Row[S]) bool) {
		one, ok := t.accounts.Get(account)
		if !ok {
			return
		}
		created := last.CreateTime.UnixNano()
		t.byCreateTime.Ascend(createTimeKey{one.id, created, last}, func(a createTimeKey) bool {
			return a.created == created && a.account == one.id && a.row.Key() == last.Name ||
				a.account == one.id && yield(a.row.(*Row[S]))
		})
	}
}

// CreatedBefore yields the rows of an account ordered by descending create time and then ascending
// name. It begins with the row that follows *last in this order, or with the first row if last is
// nil; as in CreatedAfter, the table need not have the row *last. The index is ordered by ascending
// create time and name, so CreatedBefore reads create times backward, and the rows with the same
// create time forward.
func (t *Table[S]) CreatedBefore(account string, last *Row[S]) iter.Seq[*Row[S]] {
	t = t.Of(account)
	return func(yield func(*Row[S]) bool) {
		if t.Count(account) == 0 {
			return
		}
		first, more := (*table)(t).firstCreateTimeKey(account, math.MaxInt64), true
		// at yields the rows with the create time of the key from, beginning at this key, except the
		// row last.
		at := func(from createTimeKey) {
			t.byCreateTime.Ascend(from, func(a createTimeKey) bool {
				switch {
				case a.created != from.created || a.account != from.account:
					return false
				case last != nil && a.row.Key() == last.Name:
					return true
				}
				more = yield(a.row.(*Row[S]))
				return more
			})
		}
		if last != nil {
			first.created = last.CreateTime.UnixNano()
			at(createTimeKey{first.account, first.created, last})
		}
		for more && t.previousCreateTime(&first) {
			at(first)
		}
	}
}

// previousCreateTime sets first.created to the latest earlier time at which a row of first's
// account was created. It returns false when there is none. No key of the account with the create
// time of first may be less than first.
func (t *Table[S]) previousCreateTime(first *createTimeKey) (found bool) {
	t.byCreateTime.Descend(*first, func(a createTimeKey) bool {
		if a.account != first.account {
			return false
		}
		if a.created < first.created {
			first.created, found = a.created, true
		}
		return !found
	})
	return found
}
