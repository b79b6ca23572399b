package projections

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tidwall/btree"

	"anneal/domain"
)

// BlockRows is the maximum number of rows of a block, which a change of a shared block copies.
const BlockRows = 128

// maxDerived is the maximum number of derived values that a block keeps.
const maxDerived = 20

// A Block holds up to BlockRows rows of an account's resources, in no particular order. All blocks
// of an account except the last are full. A Block is immutable and safe for concurrent use.
type Block[S domain.State] block

type block struct {
	account string
	index   int         // number of the block among the account's blocks, from 0
	cow     *cowContext // only the table with the same cow may change the block; others copy it
	rows    []domain.AnyRow
	fresh   [BlockRows / 64]uint64 // a bit for each row that was written since the block was copied

	mu      sync.Mutex                // held while derived is replaced
	derived atomic.Pointer[[]derived] // values that Derive has computed, the oldest first; never changed
}

// A cowContext identifies one copy of a table for copy-on-write: the table may change the blocks
// that have its cowContext, because no other copy shares them.
type cowContext struct{ _ byte }

// A derived value is a value that Block.Derive has computed from the rows of a block.
type derived struct{ key, value any }

// newBlocks returns an empty tree of blocks, ordered by account and index. The tree's nodes are
// small, because a change of a shared tree copies one node of each level.
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

// writableBlock returns a block of an account for a change. It first replaces a block that other
// copies of the table share by a copy, without the derived values.
func (t *table) writableBlock(account string, index int) *block {
	b := t.blockAt(account, index)
	if b != nil && b.cow == t.cow {
		return b
	}
	own := &block{account: account, index: index, cow: t.cow}
	if b != nil {
		own.rows = append(make([]domain.AnyRow, 0, min(len(b.rows)+1, BlockRows)), b.rows...)
	}
	t.blocks.Set(own)
	return own
}

// setSlot sets the row in a slot of an account (see cell). The slot may be the first unused one.
// fresh says that no copy of the table shares the row.
func (t *table) setSlot(account string, slot int, row domain.AnyRow, fresh bool) {
	b, i := t.writableBlock(account, slot/BlockRows), slot%BlockRows
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

// isUnshared reports whether no copy of the table shares the row in a slot of an account, so that
// the row can be changed in place.
func (t *table) isUnshared(account string, slot int) bool {
	b, i := t.blockAt(account, slot/BlockRows), slot%BlockRows
	return b != nil && b.cow == t.cow && b.fresh[i/64]&(1<<(i%64)) != 0
}

// freeSlot removes the row in a slot of an account, which has n slots. It moves the row of the last
// slot into the slot.
func (t *table) freeSlot(account string, slot, n int) {
	last := t.writableBlock(account, (n-1)/BlockRows)
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

// Blocks returns the blocks that hold the rows of an account.
func (t *Table[S]) Blocks(account string) []*Block[S] {
	t = t.Of(account)
	all := make([]*Block[S], 0, (t.Count(account)+BlockRows-1)/BlockRows)
	t.blocks.Ascend(&block{account: account}, func(b *block) bool {
		if b.account != account {
			return false
		}
		all = append(all, (*Block[S])(b))
		return true
	})
	return all
}

// Len returns the number of rows in the block.
func (b *Block[S]) Len() int { return len(b.rows) }

// Row returns row number i of the block, from 0.
func (b *Block[S]) Row(i int) *Row[S] { return b.rows[i].(*Row[S]) }

// Derive returns the result of compute, which must depend on nothing but the key and the rows of
// the block. It keeps the results of the last maxDerived keys, so that compute is not called again
// for them.
func (b *Block[S]) Derive(key any, compute func() any) any {
	if value, found := (*block)(b).find(key); found {
		return value
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if value, found := (*block)(b).find(key); found {
		return value
	}
	one := derived{key, compute()}
	var all []derived
	if old := b.derived.Load(); old != nil {
		all = *old
		all = all[max(0, len(all)+1-maxDerived):]
	}
	all = append(slices.Clip(all), one)
	b.derived.Store(&all)
	return one.value
}

// find returns the derived value with a key.
func (b *block) find(key any) (value any, found bool) {
	all := b.derived.Load()
	if all == nil {
		return nil, false
	}
	for i := range *all {
		if one := &(*all)[i]; one.key == key {
			return one.value, true
		}
	}
	return nil, false
}
