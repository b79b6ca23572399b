package twin

// A cache is the KV cache of a simulated replica. Blocks of running requests are pinned. Other
// blocks are evicted when space is needed, the least recently used first.
type cache struct {
	size      int64
	private   int64                  // blocks of running requests that no other request can use
	blocks    map[uint64]*cacheBlock // by hash
	unpinned  cacheBlock             // head of the ring of unpinned blocks; next is the oldest
	evictable int64                  // number of blocks in the ring
}

type cacheBlock struct {
	hash       uint64
	pins       int
	prev, next *cacheBlock
}

func newCache(size int64) *cache {
	c := &cache{size: size, blocks: map[uint64]*cacheBlock{}}
	c.unpinned.prev, c.unpinned.next = &c.unpinned, &c.unpinned
	return c
}

// leading returns how many leading blocks of a prompt are in the cache.
func (c *cache) leading(blocks []uint64) int64 {
	for i, hash := range blocks {
		if c.blocks[hash] == nil {
			return int64(i)
		}
	}
	return int64(len(blocks))
}

func (c *cache) pin(b *cacheBlock) {
	if b.pins++; b.pins == 1 && b.next != nil {
		b.prev.next, b.next.prev, b.prev, b.next = b.next, b.prev, nil, nil
		c.evictable--
	}
}

func (c *cache) unpin(b *cacheBlock) {
	if b.pins--; b.pins == 0 {
		b.prev, b.next = c.unpinned.prev, &c.unpinned
		b.prev.next, b.next.prev = b, b
		c.evictable++
	}
}

// reserve pins the blocks of a prompt and reserves private blocks. It returns false, and changes
// nothing, when there is no space for them.
func (c *cache) reserve(blocks []uint64, private int64) bool {
	needed, kept := private, int64(0)
	for _, hash := range blocks {
		switch b := c.blocks[hash]; {
		case b == nil:
			needed++
		case b.pins == 0:
			kept++
		}
	}
	free := c.size - int64(len(c.blocks)) - c.private
	if needed > free+c.evictable-kept {
		return false
	}
	for _, hash := range blocks {
		b := c.blocks[hash]
		if b == nil {
			b = &cacheBlock{hash: hash}
			c.blocks[hash] = b
		}
		c.pin(b)
	}
	c.private += private
	for int64(len(c.blocks))+c.private > c.size {
		oldest := c.unpinned.next
		c.pin(oldest)
		delete(c.blocks, oldest.hash)
	}
	return true
}

// release unpins the blocks of a prompt, and frees private blocks. It unpins the last block of the
// prompt first, so that this one is evicted first.
func (c *cache) release(blocks []uint64, private int64) {
	for i := len(blocks) - 1; i >= 0; i-- {
		c.unpin(c.blocks[blocks[i]])
	}
	c.private -= private
}
