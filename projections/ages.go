package projections

import (
	"cmp"
	"iter"
	"math"
	"strings"

	"github.com/tidwall/btree"

	"anneal/domain"
)

// An age is a row in table.ages, which is ordered by account, then create time, then name.
type age struct {
	account *string // tenant.id, so that rows of one account are compared without reading its ID
	created int64   // nanoseconds since 1970
	row     domain.AnyRow
}

func newAges() *btree.BTreeG[age] {
	return btree.NewBTreeGOptions(func(a, b age) bool { return compareAges(a, b) < 0 }, btree.Options{NoLocks: true})
}

func compareAges(a, b age) int {
	switch {
	case a.account != b.account:
		return strings.Compare(*a.account, *b.account)
	case a.created != b.created:
		return cmp.Compare(a.created, b.created)
	}
	return cmp.Compare(a.row.Key(), b.row.Key())
}

// firstAge returns an age that is not greater than those of the rows of an account that were created at or
// after a time. The account must have rows.
func (t *table) firstAge(account string, created int64) age {
	one, _ := t.accounts.Get(account)
	return age{one.id, created, t.kind.NewRow(t.firstName(account))}
}

// Oldest yields the rows of an account by create time, oldest first.
func (t *Table[S]) Oldest(account string) iter.Seq[*Row[S]] {
	t = t.Of(account)
	return func(yield func(*Row[S]) bool) {
		if t.Count(account) == 0 {
			return
		}
		first := (*table)(t).firstAge(account, math.MinInt64)
		t.ages.Ascend(first, func(a age) bool {
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
		last := (*table)(t).firstAge(account, math.MaxInt64)
		t.ages.Descend(last, func(a age) bool {
			return a.account == last.account && yield(a.row.(*Row[S]))
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
	return func(yield func(*Row[S]) bool) {
		one, ok := t.accounts.Get(account)
		if !ok {
			return
		}
		created := after.CreateTime.UnixNano()
		t.ages.Ascend(age{one.id, created, after}, func(a age) bool {
			return a.created == created && a.account == one.id && a.row.Key() == after.Name ||
				a.account == one.id && yield(a.row.(*Row[S]))
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
		if t.Count(account) == 0 {
			return
		}
		first, more := (*table)(t).firstAge(account, math.MaxInt64), true
		// at yields the rows that were created at the time of from, beginning with from, but without after.
		at := func(from age) {
			t.ages.Ascend(from, func(a age) bool {
				switch {
				case a.created != from.created || a.account != from.account:
					return false
				case after != nil && a.row.Key() == after.Name:
					return true
				}
				more = yield(a.row.(*Row[S]))
				return more
			})
		}
		if after != nil {
			first.created = after.CreateTime.UnixNano()
			at(age{first.account, first.created, after})
		}
		for more && t.momentBefore(&first) {
			at(first)
		}
	}
}

// momentBefore sets the time of first, which is not greater than the ages of that time, to the last time
// before at which a row of the account was created. The result is false when there is none.
func (t *Table[S]) momentBefore(first *age) (found bool) {
	t.ages.Descend(*first, func(a age) bool {
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
