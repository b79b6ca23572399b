package projections

import (
	"sync"

	"github.com/tidwall/btree"

	"anneal/domain"
)

// blockRows is the maximum number of rows of a block: a change of a shared block copies that many. maxDerived
// is the maximum number of derived values of a block.
const (
	blockRows  = 128
	maxDerived = 20
)

// A Block has some rows of an account, in no particular order. All blocks of an account except the last are
// full. A block is immutable and safe for concurrent use.
type Block[S domain.State] block

type block struct {
	account string
	index   int    // number of the block among those of the account
	owner   *owner // the table that may change the block
	rows    []domain.AnyRow
	fresh   [blockRows / 64]uint64 // the rows that were written since the block was copied, a bit each

	mu      sync.Mutex
	derived []derived // the oldest first
}

// An owner identifies a table whose blocks are not shared with its copies.
type owner struct{ _ byte }

// A derived value was computed from the rows of a block.
type derived struct{ key, value any }

// newBlocks returns an empty tree of blocks, ordered by account and index. Its nodes are small, because a
// change of a shared tree copies one of each level.
func newBlocks() *btree.BTreeG[*block] {
	return btree.NewBTreeGOptions(func(a, b *block) bool {
		return a.account < b.account || a.account == b.account && a.index < b.index
	}, btree.Options{NoLocks: true, Degree: 8})
}

// blockAt returns a block of an account; nil if there is none.
func (t *table) blockAt(account string, index int) *block {
	t.pivot.account, t.pivot.index = account, index
	b, _ := t.blocks.Get(&t.pivot)
	return b
}

// ownBlock returns a block of an account that the table may change. It copies a shared block, without the
// derived values.
func (t *table) ownBlock(account string, index int) *block {
	b := t.blockAt(account, index)
	if b != nil && b.owner == t.owner {
		return b
	}
	own := &block{account: account, index: index, owner: t.owner}
	if b != nil {
		own.rows = append(make([]domain.AnyRow, 0, min(len(b.rows)+1, blockRows)), b.rows...)
	}
	t.blocks.Set(own)
	return own
}

// setSlot sets the row in a slot of an account, which is at most the number of the account's slots. fresh
// says that no copy of the table has the row.
func (t *table) setSlot(account string, slot int, row domain.AnyRow, fresh bool) {
	b, i := t.ownBlock(account, slot/blockRows), slot%blockRows
	if i == len(b.rows) {
		b.rows = append(b.rows, nil)
	}
	b.rows[i] = row
	if bit := uint64(1) << (i % 64); fresh {
		b.fresh[i/64] |= bit
	} else {
		b.fresh[i/64] &^= bit
	}
}

// owns reports whether no copy of the table has the row in a slot of an account.
func (t *table) owns(account string, slot int) bool {
	b, i := t.blockAt(account, slot/blockRows), slot%blockRows
	return b != nil && b.owner == t.owner && b.fresh[i/64]&(1<<(i%64)) != 0
}

// freeSlot removes the row in a slot of an account, which has n slots. The row of the last slot takes its
// place.
func (t *table) freeSlot(account string, slot, n int) {
	last := t.ownBlock(account, (n-1)/blockRows)
	end := len(last.rows) - 1
	if row := last.rows[end]; slot != n-1 {
		t.setSlot(account, slot, row, false)
		t.rows.Set(row.Head().Name, cell{row, slot})
	}
	last.rows[end] = nil
	last.rows = last.rows[:end]
	if end == 0 {
		t.blocks.Delete(last)
	}
}

// Blocks returns the blocks with the rows of an account.
func (t *Table[S]) Blocks(account string) []*Block[S] {
	t = t.Of(account)
	all := make([]*Block[S], 0, (t.Count(account)+blockRows-1)/blockRows)
	t.blocks.Ascend(&block{account: account}, func(b *block) bool {
		if b.account != account {
			return false
		}
		all = append(all, (*Block[S])(b))
		return true
	})
	return all
}

// Len returns the number of rows.
func (b *Block[S]) Len() int { return len(b.rows) }

// Row returns a row by its index in the block.
func (b *Block[S]) Row(i int) *Row[S] { return b.rows[i].(*Row[S]) }

// Derive returns the value that compute returns for the rows of the block. It keeps the values of the last
// maxDerived keys, so that compute, which must depend on nothing but the key and the rows, is not called
// again.
func (b *Block[S]) Derive(key any, compute func() any) any {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, one := range b.derived {
		if one.key == key {
			return one.value
		}
	}
	one := derived{key, compute()}
	if len(b.derived) == maxDerived {
		copy(b.derived, b.derived[1:])
		b.derived[maxDerived-1] = one
	} else {
		b.derived = append(b.derived, one)
	}
	return one.value
}
