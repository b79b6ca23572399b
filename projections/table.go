package projections

import (
	"encoding/binary"
	"iter"
	"strings"
	"time"

	"github.com/tidwall/btree"

	"anneal/domain"
)

// A Row is the current state of one resource. Whoever gets one from a view may
// keep it: it never changes. Maps and slices in State are shared; do not edit
// them.
type Row[S any] struct {
	Name       domain.Name
	State      S
	CreateTime time.Time // of the event that made it exist, UTC
	UpdateTime time.Time // of its last event, UTC
	Version    uint64    // position of its last event

	// CreateEvent is the ID of the event that made it exist. No other resource
	// ever has it, also not one that has the name later: it names folders.
	CreateEvent string

	generation uint64 // of the table when the row was made; see fold.change
}

// A Table holds the rows of one kind at one position of the log. It is
// immutable and safe for concurrent use.
type Table[S domain.State] struct {
	collection string
	rows       *btree.Map[domain.Name, *Row[S]]
	ages       *btree.Map[string, *Row[S]]     // by account, then create time, then name: see ageKey
	counts     *btree.Map[string, int]         // rows per account
	gone       *btree.Map[domain.Name, uint64] // version of what no longer exists
}

func newTable[S domain.State](collection string) *Table[S] {
	return &Table[S]{collection, new(btree.Map[domain.Name, *Row[S]]), new(btree.Map[string, *Row[S]]),
		new(btree.Map[string, int]), new(btree.Map[domain.Name, uint64])}
}

// copy answers a table that later changes of t do not reach. It costs the same
// for any number of rows.
func (t *Table[S]) copy() *Table[S] {
	return &Table[S]{t.collection, t.rows.Copy(), t.ages.Copy(), t.counts.Copy(), t.gone.Copy()}
}

// Collection is the collection whose resources the table holds.
func (t *Table[S]) Collection() string { return t.collection }

// Get is the row of a resource; false when it does not exist.
func (t *Table[S]) Get(name domain.Name) (*Row[S], bool) { return t.rows.Get(name) }

func (t *Table[S]) state(name domain.Name) (any, bool) {
	row, ok := t.rows.Get(name)
	if !ok {
		return nil, false
	}
	return row.State, true
}

// Version is the position of the last event of a resource, also when it no
// longer exists; 0 when it never did.
func (t *Table[S]) Version(name domain.Name) uint64 {
	if row, ok := t.rows.Get(name); ok {
		return row.Version
	}
	version, _ := t.gone.Get(name)
	return version
}

// Len is the number of rows.
func (t *Table[S]) Len() int { return t.rows.Len() }

// Count is the number of rows of an account.
func (t *Table[S]) Count(account string) int {
	n, _ := t.counts.Get(account)
	return n
}

// All yields every row in the order of names.
func (t *Table[S]) All() iter.Seq[*Row[S]] {
	return func(yield func(*Row[S]) bool) {
		t.rows.Scan(func(_ domain.Name, row *Row[S]) bool { return yield(row) })
	}
}

// In yields the rows of an account in the order of names.
func (t *Table[S]) In(account string) iter.Seq[*Row[S]] {
	return func(yield func(*Row[S]) bool) {
		t.rows.Ascend(domain.NewName(account, t.collection, t.firstID(account)), func(name domain.Name, row *Row[S]) bool {
			return name.Account() == account && yield(row)
		})
	}
}

// firstID is an ID not after any that the account may have in the table.
func (t *Table[S]) firstID(account string) string {
	if t.collection == "accounts" {
		return account
	}
	return ""
}

// Oldest yields the rows of an account by create time, the oldest first.
func (t *Table[S]) Oldest(account string) iter.Seq[*Row[S]] {
	prefix := account + "\x00"
	return func(yield func(*Row[S]) bool) {
		t.ages.Ascend(prefix, func(key string, row *Row[S]) bool {
			return strings.HasPrefix(key, prefix) && yield(row)
		})
	}
}

// Newest yields the rows of an account by create time, the newest first.
func (t *Table[S]) Newest(account string) iter.Seq[*Row[S]] {
	prefix, after := account+"\x00", account+"\x01"
	return func(yield func(*Row[S]) bool) {
		t.ages.Descend(after, func(key string, row *Row[S]) bool {
			return strings.HasPrefix(key, prefix) && yield(row)
		})
	}
}

// madeAfter yields the rows of an account by create time and then name, those
// after one, which need not exist; nil is before the first.
func (t *Table[S]) madeAfter(account string, after *Row[S]) iter.Seq[*Row[S]] {
	if after == nil {
		return t.Oldest(account)
	}
	prefix, last := account+"\x00", ageKey(after.Name, after.CreateTime)
	return func(yield func(*Row[S]) bool) {
		t.ages.Ascend(last, func(key string, row *Row[S]) bool {
			return key == last || strings.HasPrefix(key, prefix) && yield(row)
		})
	}
}

// madeBefore yields the rows of an account by create time, the newest first,
// and then name, those after one in this order; nil is before the first. Of the
// rows of one moment it goes forward, from each moment to the next backward.
func (t *Table[S]) madeBefore(account string, after *Row[S]) iter.Seq[*Row[S]] {
	return func(yield func(*Row[S]) bool) {
		before := account + "\x01"
		more := true
		if after != nil {
			last := ageKey(after.Name, after.CreateTime)
			before = last[:len(account)+1+timeBytes]
			t.ages.Ascend(last, func(key string, row *Row[S]) bool {
				more = key == last || !strings.HasPrefix(key, before) || yield(row)
				return more && strings.HasPrefix(key, before)
			})
		}
		for more {
			moment := t.momentBefore(account, before)
			if moment == "" {
				return
			}
			t.ages.Ascend(moment, func(key string, row *Row[S]) bool {
				if !strings.HasPrefix(key, moment) {
					return false
				}
				more = yield(row)
				return more
			})
			before = moment
		}
	}
}

// momentBefore is what the age keys of an account's last moment before a key
// have in common; "" when there is none.
func (t *Table[S]) momentBefore(account, before string) (moment string) {
	t.ages.Descend(before, func(key string, _ *Row[S]) bool {
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

// put makes row the one of its name.
func (t *Table[S]) put(row *Row[S], isNew bool) {
	t.rows.Set(row.Name, row)
	t.ages.Set(ageKey(row.Name, row.CreateTime), row)
	if isNew {
		t.gone.Delete(row.Name)
		t.counts.Set(row.Name.Account(), t.Count(row.Name.Account())+1)
	}
}

// remove forgets a row that had the given create time, all but its version.
func (t *Table[S]) remove(name domain.Name, created time.Time, version uint64) {
	t.rows.Delete(name)
	t.ages.Delete(ageKey(name, created))
	if n := t.Count(name.Account()); n > 1 {
		t.counts.Set(name.Account(), n-1)
	} else {
		t.counts.Delete(name.Account())
	}
	t.gone.Set(name, version)
}
