package balance

import "math/bits"

// prefixes predicts which blocks of prompts each replica has cached. For each replica it has a list
// of blocks in the order of their last use, of bounded length.
type prefixes struct {
	holders map[uint64]*replicaSet // by block: replicas whose lists have the block
	lists   []blockList            // by index of the replica
}

// A replicaSet is a set of indexes of replicas.
type replicaSet struct {
	words []uint64
	count int
}

func (s *replicaSet) has(replica int) bool {
	return replica/64 < len(s.words) && s.words[replica/64]&(1<<(replica%64)) != 0
}

func (s *replicaSet) add(replica int) {
	if s.has(replica) {
		return
	}
	for len(s.words) <= replica/64 {
		s.words = append(s.words, 0)
	}
	s.words[replica/64] |= 1 << (replica % 64)
	s.count++
}

func (s *replicaSet) remove(replica int) {
	if s.has(replica) {
		s.words[replica/64] &^= 1 << (replica % 64)
		s.count--
	}
}

// A blockList has blocks in the order of their last use. slots[0].next is the newest block.
type blockList struct {
	slots []blockSlot      // slot 0 is the head of the ring
	index map[uint64]int32 // slot of each block
	free  []int32          // slots without a block
	limit int              // maximum number of blocks
}

type blockSlot struct {
	block      uint64
	prev, next int32
}

func newBlockList(limit int) blockList {
	return blockList{slots: make([]blockSlot, 1), index: map[uint64]int32{}, limit: limit}
}

func (l *blockList) unlink(at int32) {
	s := l.slots[at]
	l.slots[s.prev].next, l.slots[s.next].prev = s.next, s.prev
}

func (l *blockList) linkFirst(at int32) {
	first := l.slots[0].next
	l.slots[at].prev, l.slots[at].next = 0, first
	l.slots[first].prev, l.slots[0].next = at, at
}

// use makes a block the newest of the list. added reports whether the block is new in the list.
func (l *blockList) use(block uint64) (added bool) {
	if at, ok := l.index[block]; ok {
		l.unlink(at)
		l.linkFirst(at)
		return false
	}
	var at int32
	if n := len(l.free); n > 0 {
		at, l.free = l.free[n-1], l.free[:n-1]
	} else {
		at = int32(len(l.slots))
		l.slots = append(l.slots, blockSlot{})
	}
	l.slots[at].block = block
	l.index[block] = at
	l.linkFirst(at)
	return true
}

// removeOldest removes and returns the least recently used block.
func (l *blockList) removeOldest() uint64 {
	at := l.slots[0].prev
	block := l.slots[at].block
	l.unlink(at)
	delete(l.index, block)
	l.free = append(l.free, at)
	return block
}

// use records that a replica caches the blocks of a prompt. The first blocks of the prompt become
// the newest of the list, because a block is only useful with all blocks before it.
func (p *prefixes) use(replica int, blocks []uint64) {
	l := &p.lists[replica]
	if len(blocks) > l.limit {
		blocks = blocks[:l.limit]
	}
	for i := len(blocks) - 1; i >= 0; i-- {
		if l.use(blocks[i]) {
			holders := p.holders[blocks[i]]
			if holders == nil {
				holders = &replicaSet{}
				p.holders[blocks[i]] = holders
			}
			holders.add(replica)
		}
	}
	p.shrink(replica)
}

// shrink removes the oldest blocks of a replica until its list has no more than its limit.
func (p *prefixes) shrink(replica int) {
	l := &p.lists[replica]
	for len(l.index) > l.limit {
		p.forget(replica, l.removeOldest())
	}
}

// forget records that a replica no longer caches a block.
func (p *prefixes) forget(replica int, block uint64) {
	if holders := p.holders[block]; holders != nil {
		if holders.remove(replica); holders.count == 0 {
			delete(p.holders, block)
		}
	}
}

// clear removes all blocks of a replica.
func (p *prefixes) clear(replica int) {
	l := &p.lists[replica]
	for block := range l.index {
		p.forget(replica, block)
	}
	*l = newBlockList(l.limit)
}

// cached sets counts[r] to the number of leading blocks that replica r has cached. All counts must
// be zero before. matching is a buffer that is reused between calls.
func (p *prefixes) cached(blocks []uint64, matching *replicaSet, counts []int32) {
	matching.words = matching.words[:0]
	for i, block := range blocks {
		holders := p.holders[block]
		if holders == nil {
			matching.setCounts(counts, int32(i))
			return
		}
		if i == 0 {
			matching.words = append(matching.words, holders.words...)
			continue
		}
		more := uint64(0)
		for w, had := range matching.words {
			has := uint64(0)
			if w < len(holders.words) {
				has = had & holders.words[w]
			}
			setCounts(counts, w, had&^has, int32(i))
			matching.words[w] = has
			more |= has
		}
		if more == 0 {
			return
		}
	}
	matching.setCounts(counts, int32(len(blocks)))
}

// setCounts sets the counts of all replicas of a set to n.
func (s *replicaSet) setCounts(counts []int32, n int32) {
	for w, set := range s.words {
		setCounts(counts, w, set, n)
	}
}

func setCounts(counts []int32, word int, set uint64, n int32) {
	for ; set != 0; set &= set - 1 {
		counts[word*64+bits.TrailingZeros64(set)] = n
	}
}
