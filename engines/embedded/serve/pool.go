package serve

import (
	"container/list"
	"slices"
	"weak"

	"anneal/engines/embedded/llama"
)

// A pool allocates the blocks of KV caches, up to a limit. It is also the prefix cache: it finds
// blocks with the beginning of a new prompt. Blocks that no sequence uses stay cached until their
// memory is needed; the least recently used one is evicted first.
type pool struct {
	config    *llama.Config
	maxBlocks int      // maximum number of allocated blocks
	allocated int      // number of allocated blocks
	reserved  int      // number of blocks that running sequences may still take
	free      []*block // blocks without cached content
	lru       list.List
	index     map[blockKey]*block
	lastID    uint64
}

// An entry is the state of a block in the pool.
type entry struct {
	id      uint64 // ID of the block's content, which is never reused
	refs    int    // number of sequences that use the block
	keys    []blockKey
	element *list.Element // element of the LRU list; nil if a sequence uses the block
}

// A blockKey has all that determines the content of a block. The ID of the block before it stands
// for all earlier tokens. So two keys are equal only if all tokens up to the end of the block are
// equal, and requests of different cache scopes or adapters never share a prefix.
type blockKey struct {
	scope string // cache scope; only in the key of a first block
	// addon is only in the key of a first block. It distinguishes adapters that were loaded under
	// the same ID.
	addon  weak.Pointer[addon]
	before uint64             // ID of the block before this one; 0 for a first block
	tokens [blockTokens]int32 // tokens of the block; -1 after the last one
}

// nextKey returns the key of the block after a number of leading blocks of a sequence. tokens are
// the tokens in that block.
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

// reusable returns the number of prompt tokens that may come from the prefix cache. The last token
// is always computed, because its logits are needed, and so are tokens whose log-probabilities are
// requested and all tokens of an embedding that is a mean.
func (r *request) reusable() int {
	if r.scored() {
		return max(r.output.echo, 1) - 1
	}
	if r.pooler != nil && r.pooler.mean {
		return 0
	}
	return len(r.prompt) - 1
}

// nextKey returns the key of the block with the next prompt token of the request.
func (r *request) nextKey() blockKey {
	whole := r.read / blockTokens
	return r.cache.nextKey(whole, r, r.prompt[whole*blockTokens:min((whole+1)*blockTokens, len(r.prompt))])
}

// admit returns a KV cache with space for the prompt and the longest completion. The cache begins
// with the cached prefix of the prompt. admit returns nil if the pool has too few free blocks.
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

// match appends cached blocks that continue the prompt to the KV cache of a request. It does
// nothing if the KV cache ends within a block.
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

// matchPartial searches a cached block that begins with the next tokens of the request, and appends
// a copy of it, because both sequences will write to their blocks.
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

// take appends the block b, which has the given tokens, to the KV cache.
func (p *pool) take(c *cache, b *block, tokens []int) {
	c.blocks, c.tokens = append(c.blocks, b), append(c.tokens, tokens...)
	c.reserved--
	p.reserved--
}

// extend allocates blocks for n more positions from the reservation of the KV cache.
func (p *pool) extend(c *cache, n int) {
	for len(c.blocks) < blocksFor(c.length()+n) {
		p.take(c, p.allocate(), nil)
	}
}

// keep registers the full blocks of a request in the prefix cache. At the end of the prompt, it
// also registers the last block without the last token of the prompt.
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

// register records the key of block i with its first n tokens. If the block is full and the prefix
// cache already has one with this key, register replaces block i by that one.
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

// release frees the blocks of a KV cache, the last one first. So earlier blocks, without which
// later ones cannot be found, are evicted later.
func (p *pool) release(c *cache) {
	p.reserved -= c.reserved
	for _, b := range slices.Backward(c.blocks) {
		p.unref(b)
	}
	*c = cache{}
}

// retain records that one more sequence uses a block.
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

// allocate takes a block from the reservation of a sequence.
func (p *pool) allocate() *block {
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

// copy returns a block with the content of b, to which a sequence may write. If the pool has no
// free block and no other sequence uses b, it returns b itself.
func (p *pool) copy(b *block) *block {
	p.retain(b)
	if b.entry.refs == 1 && len(p.free) == 0 && p.allocated >= p.maxBlocks && p.lru.Len() == 0 {
		return p.reset(b)
	}
	other := p.allocate()
	copy(other.keys, b.keys)
	copy(other.values, b.values)
	p.unref(b)
	return other
}
