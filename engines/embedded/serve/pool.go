package serve

import (
	"container/list"
	"slices"
	"weak"

	"anneal/engines/embedded/llama"
)

// A pool allocates KV cache blocks within a limit, and is the prefix cache: it finds the blocks
// that hold the beginning of a new prompt. Unreferenced blocks stay cached until their memory
// is needed, and are evicted least recently used first.
type pool struct {
	config    *llama.Config
	maxBlocks int      // limit
	allocated int      // blocks allocated
	reserved  int      // blocks that running sequences may still take
	free      []*block // blocks without cached content
	lru       list.List
	index     map[blockKey]*block
	lastID    uint64
}

// An entry is the pool's state of a block.
type entry struct {
	id      uint64 // never reused
	refs    int    // reference count: sequences
	keys    []blockKey
	element *list.Element // in the LRU list, if unreferenced
}

// A blockKey is everything that the content of a block depends on. The ID of the preceding
// block stands for all tokens before the block, so two keys are equal only if every token is,
// and a prefix is never shared between cache scopes or addons.
type blockKey struct {
	scope  string              // of a first block
	addon  weak.Pointer[addon] // of a first block; distinguishes addons that were loaded under one ID
	before uint64              // ID of the preceding block, 0 for a first block
	tokens [blockTokens]int32  // padded with -1
}

// nextKey is the key of a sequence's next block, which begins with tokens.
func (c *cache) nextKey(blocks int, r *request, tokens []int) blockKey {
	var o blockKey
	if blocks == 0 {
		o.scope, o.addon = r.scope, weak.Make(r.addon)
	} else {
		o.before = c.blocks[blocks-1].entry.id
	}
	for i := range o.tokens {
		o.tokens[i] = -1
		if i < len(tokens) {
			o.tokens[i] = int32(tokens[i])
		}
	}
	return o
}

// reusable is the number of prompt tokens that may come from the prefix cache. The last token
// is computed for the logits after it, as are the tokens whose logprobs are requested.
func (r *request) reusable() int {
	if r.scored() {
		return max(r.output.echo, 1) - 1
	}
	return len(r.prompt) - 1
}

// nextKey is the key of the block of the request's next token.
func (r *request) nextKey() blockKey {
	whole := r.read / blockTokens
	return r.cache.nextKey(whole, r, r.prompt[whole*blockTokens:min((whole+1)*blockTokens, len(r.prompt))])
}

// admit allocates a cache for the whole completion, starting with the cached prefix of the
// prompt. It returns nil if the pool has no capacity now.
func (p *pool) admit(r *request) *cache {
	c := &cache{reserved: blocksFor(len(r.prompt) + r.limit)}
	p.reserved += c.reserved
	p.matchBlocks(c, r)
	if p.allocated-len(p.free)-p.lru.Len()+p.reserved > p.maxBlocks {
		p.release(c)
		return nil
	}
	r.cache = c
	p.match(r)
	return c
}

// match extends the prefix of a request that is at a block boundary with cached blocks.
func (p *pool) match(r *request) {
	c := r.cache
	if c.length()%blockTokens != 0 {
		return
	}
	p.matchBlocks(c, r)
	p.matchPartial(c, r)
	r.cachedTokens += c.length() - r.read
	r.read = c.length()
}

func (p *pool) matchBlocks(c *cache, r *request) {
	for at := c.length(); at+blockTokens <= r.reusable(); at += blockTokens {
		tokens := r.prompt[at : at+blockTokens]
		b := p.index[c.nextKey(len(c.blocks), r, tokens)]
		if b == nil {
			return
		}
		p.retain(b)
		p.take(c, b, tokens)
		c.registered++
	}
}

// matchPartial looks for a cached block that begins with the request's next tokens. The block
// is copied, because both sequences append to it.
func (p *pool) matchPartial(c *cache, r *request) {
	at := c.length()
	for n := min(r.reusable()-at, blockTokens-1); n > 0; n-- {
		tokens := r.prompt[at : at+n]
		if b := p.index[c.nextKey(len(c.blocks), r, tokens)]; b != nil {
			p.take(c, p.copy(b), tokens)
			return
		}
	}
}

// take appends a block that holds tokens.
func (p *pool) take(c *cache, b *block, tokens []int) {
	c.blocks, c.tokens = append(c.blocks, b), append(c.tokens, tokens...)
	c.reserved--
	p.reserved--
}

// extend allocates blocks for n more positions, out of the cache's reservation.
func (p *pool) extend(c *cache, n int) {
	for len(c.blocks) < blocksFor(c.length()+n) {
		p.take(c, p.fresh(), nil)
	}
}

// keep registers the blocks that have become full in the prefix cache and, at the end of a
// prompt, its partial last block.
func (p *pool) keep(r *request) {
	c := r.cache
	for (c.registered+1)*blockTokens <= c.length() {
		p.register(r, c.registered, blockTokens)
		c.registered++
	}
	last := len(r.prompt) - 1
	if r.generated == 1 && last%blockTokens > 0 {
		p.register(r, last/blockTokens, last%blockTokens)
	}
}

// register records the key of the first n tokens of block i. A full block that duplicates a
// cached one is replaced by it.
func (p *pool) register(r *request, i, n int) {
	c := r.cache
	o, b := c.nextKey(i, r, c.tokens[i*blockTokens:][:n]), c.blocks[i]
	if p.index == nil {
		p.index = map[blockKey]*block{}
	}
	switch other := p.index[o]; {
	case other == nil:
		p.index[o] = b
		b.entry.keys = append(b.entry.keys, o)
	case other != b && n == blockTokens:
		p.retain(other)
		c.blocks[i] = other
		p.unref(b)
	}
}

// release frees a cache's blocks. The last block is freed first, so that its predecessors,
// without which it cannot be found, are evicted later.
func (p *pool) release(c *cache) {
	p.reserved -= c.reserved
	for _, b := range slices.Backward(c.blocks) {
		p.unref(b)
	}
	*c = cache{}
}

// retain adds a reference to a block.
func (p *pool) retain(b *block) {
	if b.entry.refs++; b.entry.element != nil {
		p.lru.Remove(b.entry.element)
		b.entry.element = nil
	}
}

func (p *pool) unref(b *block) {
	if b.entry.refs--; b.entry.refs > 0 {
		return
	}
	if len(b.entry.keys) == 0 {
		p.free = append(p.free, b)
		return
	}
	b.entry.element = p.lru.PushBack(b)
}

// fresh allocates a block from a sequence's reservation.
func (p *pool) fresh() *block {
	var b *block
	switch {
	case len(p.free) > 0:
		b = p.free[len(p.free)-1]
		p.free = p.free[:len(p.free)-1]
	case p.allocated < p.maxBlocks:
		b = newBlock(p.config)
		p.allocated++
	default:
		b = p.lru.Remove(p.lru.Front()).(*block)
	}
	return p.reset(b)
}

// reset removes a block from the prefix cache and gives it a new ID.
func (p *pool) reset(b *block) *block {
	for _, o := range b.entry.keys {
		delete(p.index, o)
	}
	p.lastID++
	b.entry = entry{id: p.lastID, refs: 1, keys: b.entry.keys[:0]}
	return b
}

// copy returns a copy of a block that its sequence may write to: the block itself if it is
// unreferenced and no other memory is left.
func (p *pool) copy(b *block) *block {
	p.retain(b)
	if b.entry.refs == 1 && len(p.free) == 0 && p.allocated >= p.maxBlocks && p.lru.Len() == 0 {
		return p.reset(b)
	}
	other := p.fresh()
	copy(other.keys, b.keys)
	copy(other.values, b.values)
	p.unref(b)
	return other
}
