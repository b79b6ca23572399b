package serve

import (
	"container/list"
	"slices"
	"weak"

	"anneal/engines/embedded/llama"
)

// A pool allocates KV cache blocks within a limit. It is also the prefix cache, which finds the
// blocks that hold the beginning of a new prompt. Unreferenced blocks stay cached until their
// memory is needed; the least recently used block is evicted first.
type pool struct {
	config    *llama.Config
	maxBlocks int      // limit of allocated
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
	refs    int    // number of sequences that use the block
	keys    []blockKey
	element *list.Element // position in the LRU list; nil if referenced
}

// A blockKey holds everything on which the content of a block depends. The ID of the preceding
// block stands for all tokens before the block. Two keys are therefore equal only if all tokens
// up to the end of the block are, and different cache scopes or addons never share a prefix.
type blockKey struct {
	scope  string              // cache scope, in the key of a first block
	addon  weak.Pointer[addon] // in the key of a first block; distinguishes addons that were loaded under one ID
	before uint64              // ID of the preceding block, 0 for a first block
	tokens [blockTokens]int32  // padded with -1
}

// nextKey returns the key of the block that follows the given number of leading blocks of a
// sequence. tokens are the tokens of that block.
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

// reusable returns the number of prompt tokens that may come from the prefix cache. The last
// token is always computed, for the logits after it, and so are the tokens whose logprobs are
// requested, and all tokens of a mean of hidden states.
func (r *request) reusable() int {
	if r.scored() {
		return max(r.output.echo, 1) - 1
	}
	if r.pooler != nil && r.pooler.mean {
		return 0
	}
	return len(r.prompt) - 1
}

// nextKey returns the key of the block that holds the request's next prompt token.
func (r *request) nextKey() blockKey {
	whole := r.read / blockTokens
	return r.cache.nextKey(whole, r, r.prompt[whole*blockTokens:min((whole+1)*blockTokens, len(r.prompt))])
}

// admit returns a cache with space for the prompt and the whole completion. The cache begins with
// the cached prefix of the prompt. admit returns nil if the pool has too few free blocks.
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

// match appends cached blocks that continue the prompt to the request's cache. It does nothing
// unless the cache ends at a block boundary.
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

// matchPartial looks for a cached block that begins with the request's next tokens. It appends a
// copy of the block, because both sequences will write to their blocks.
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

// take appends block b, which holds tokens, to the cache.
func (p *pool) take(c *cache, b *block, tokens []int) {
	c.blocks, c.tokens = append(c.blocks, b), append(c.tokens, tokens...)
	c.reserved--
	p.reserved--
}

// extend allocates blocks for n more positions from the cache's reservation.
func (p *pool) extend(c *cache, n int) {
	for len(c.blocks) < blocksFor(c.length()+n) {
		p.take(c, p.fresh(), nil)
	}
}

// keep registers the full blocks of a request in the prefix cache. At the end of the prompt, it
// also registers the part of the prompt's last block before the prompt's last token.
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

// register records the key of the first n tokens of block i. If block i is full and a cached block
// has the same key, register replaces block i by the cached block.
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

// release frees a cache's blocks, the last block first. The preceding blocks, without which the
// last one cannot be found, are thus evicted later.
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

// copy returns a block that has the content of b, and that a sequence may write to. If the pool has
// no free block for a copy and no other sequence uses b, copy returns b itself.
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
