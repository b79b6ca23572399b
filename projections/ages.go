package projections

import (
	"iter"
	"math"
	"time"

	"github.com/tidwall/btree"

	"anneal/domain"
)

// An age is a row in table.ages, which is ordered by account, then create time, then name.
type age struct {
	name    domain.Name
	created int64 // nanoseconds since 1970
	row     domain.AnyRow
}

func ageOf(name domain.Name, created time.Time) age {
	return age{name: name, created: created.UnixNano()}
}

func newAges() *btree.BTreeG[age] {
	return btree.NewBTreeGOptions(func(a, b age) bool {
		if a, b := a.name.Account(), b.name.Account(); a != b {
			return a < b
		}
		return a.created < b.created || a.created == b.created && a.name < b.name
	}, btree.Options{NoLocks: true})
}

// Oldest yields the rows of an account by create time, oldest first.
func (t *Table[S]) Oldest(account string) iter.Seq[*Row[S]] {
	t = t.Of(account)
	return func(yield func(*Row[S]) bool) {
		first := age{name: (*table)(t).firstName(account), created: math.MinInt64}
		t.ages.Ascend(first, func(a age) bool {
			return a.name.Account() == account && yield(a.row.(*Row[S]))
		})
	}
}

// Newest yields the rows of an account by create time, newest first.
func (t *Table[S]) Newest(account string) iter.Seq[*Row[S]] {
	t = t.Of(account)
	return func(yield func(*Row[S]) bool) {
		last := age{name: (*table)(t).firstName(account), created: math.MaxInt64}
		t.ages.Descend(last, func(a age) bool {
			return a.name.Account() == account && yield(a.row.(*Row[S]))
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
		last := ageOf(after.Name, after.CreateTime)
		t.ages.Ascend(last, func(a age) bool {
			return a.name == last.name && a.created == last.created ||
				a.name.Account() == account && yield(a.row.(*Row[S]))
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
		more := true
		// at yields the rows that were created at a moment, after the row with the name after.
		at := func(moment int64, after domain.Name, skip bool) {
			t.ages.Ascend(age{name: after, created: moment}, func(a age) bool {
				switch {
				case a.created != moment || a.name.Account() != account:
					return false
				case skip && a.name == after:
					return true
				}
				more = yield(a.row.(*Row[S]))
				return more
			})
		}
		first, before := (*table)(t).firstName(account), int64(math.MaxInt64)
		if after != nil {
			before = after.CreateTime.UnixNano()
			at(before, after.Name, true)
		}
		for more {
			moment, ok := t.momentBefore(account, before)
			if !ok {
				return
			}
			at(moment, first, false)
			before = moment
		}
	}
}

// momentBefore returns the last create time of the account's rows that is earlier than before. The result is
// false when there is none.
func (t *Table[S]) momentBefore(account string, before int64) (moment int64, ok bool) {
	t.ages.Descend(age{name: (*table)(t).firstName(account), created: before}, func(a age) bool {
		if a.name.Account() != account {
			return false
		}
		moment, ok = a.created, a.created < before
		return !ok
	})
	return moment, ok
}
