package twin

// A cache is the KV cache of a simulated replica. Blocks of running requests are pinned. The others
// are evicted when space is needed, the least recently used first.
type cache struct {
	size     int64
	private  int64 // blocks of running requests that no other request can use
	of       map[uint64]*cacheBlock
	unpinned cacheBlock // ring of the blocks that are not pinned; its next is the oldest
	evicts   int64      // number of blocks in the ring
}

type cacheBlock struct {
	hash       uint64
	pins       int
	prev, next *cacheBlock
}

func newCache(size int64) *cache {
	c := &cache{size: size, of: map[uint64]*cacheBlock{}}
	c.unpinned.prev, c.unpinned.next = &c.unpinned, &c.unpinned
	return c
}

// leading returns how many leading blocks of a prompt are in the cache.
func (c *cache) leading(blocks []uint64) int64 {
	for i, hash := range blocks {
		if c.of[hash] == nil {
			return int64(i)
		}
	}
	return int64(len(blocks))
}

func (c *cache) pin(b *cacheBlock) {
	if b.pins++; b.pins == 1 && b.next != nil {
		b.prev.next, b.next.prev, b.prev, b.next = b.next, b.prev, nil, nil
		c.evicts--
	}
}

func (c *cache) unpin(b *cacheBlock) {
	if b.pins--; b.pins == 0 {
		b.prev, b.next = c.unpinned.prev, &c.unpinned
		b.prev.next, b.next.prev = b, b
		c.evicts++
	}
}

// reserve pins the blocks of a prompt and reserves private blocks. It returns false, and changes
// nothing, when there is no space for them.
func (c *cache) reserve(blocks []uint64, private int64) bool {
	needed, kept := private, int64(0)
	for _, hash := range blocks {
		switch b := c.of[hash]; {
		case b == nil:
			needed++
		case b.pins == 0:
			kept++
		}
	}
	free := c.size - int64(len(c.of)) - c.private
	if needed > free+c.evicts-kept {
		return false
	}
	for _, hash := range blocks {
		b := c.of[hash]
		if b == nil {
			b = &cacheBlock{hash: hash}
			c.of[hash] = b
		}
		c.pin(b)
	}
	c.private += private
	for int64(len(c.of))+c.private > c.size {
		oldest := c.unpinned.next
		c.pin(oldest)
		delete(c.of, oldest.hash)
	}
	return true
}

// release unpins the blocks of a prompt, the last first, so that it is evicted first, and frees
// private blocks.
func (c *cache) release(blocks []uint64, private int64) {
	for i := len(blocks) - 1; i >= 0; i-- {
		c.unpin(c.of[blocks[i]])
	}
	c.private -= private
}
