package serve

import (
	"container/list"
	"slices"
	"weak"

	"anneal/engines/embedded/llama"
)

// A pool hands out blocks within a bound, and finds those again that hold what
// a new prompt begins with. Blocks that nobody reads are kept for prompts to
// come until their memory is needed: those longest unused go first.
type pool struct {
	config   *llama.Config
	most     int      // blocks, bound
	made     int      // blocks that there are
	promised int      // that sequences under way may still ask for
	free     []*block // of no use to anybody
	idle     list.List
	found    map[origin]*block
	names    uint64
}

// An entry is what the pool knows of a block.
type entry struct {
	name    uint64 // never given twice
	readers int    // sequences
	origins []origin
	place   *list.Element // among the idle, when nobody reads it
}

// An origin is all that a block's content depends on: the text up to its end,
// and who has read it. Tokens before the block are those of the block before,
// whose name stands for them; so two origins are equal only when every token
// is, and text is never found by another scope or addon.
type origin struct {
	scope  string              // of a first block
	addon  weak.Pointer[addon] // of a first block; also where another has its ID later
	before uint64              // name of the block before, 0 for a first block
	tokens [blockTokens]int32  // -1 after the last
}

// next is the origin of a sequence's next block, when it begins with tokens.
func (c *cache) next(blocks int, r *request, tokens []int) origin {
	var o origin
	if blocks == 0 {
		o.scope, o.addon = r.scope, weak.Make(r.addon)
	} else {
		o.before = c.blocks[blocks-1].entry.name
	}
	for i := range o.tokens {
		o.tokens[i] = -1
		if i < len(tokens) {
			o.tokens[i] = int32(tokens[i])
		}
	}
	return o
}

// reusable is how many tokens of the prompt need not be read when they are
// known: the last is for what follows it, and so are those that are scored.
func (r *request) reusable() int {
	if r.scored() {
		return max(r.told.echo, 1) - 1
	}
	return len(r.prompt) - 1
}

// next is the origin of the block that the request's next token belongs to.
func (r *request) next() origin {
	whole := r.read / blockTokens
	return r.cache.next(whole, r, r.prompt[whole*blockTokens:min((whole+1)*blockTokens, len(r.prompt))])
}

// admit gives a request the cache that its whole answer will need, and lets it
// begin with what is known of its prompt; nil when there is no room now.
func (p *pool) admit(r *request) *cache {
	c := &cache{promised: blocksFor(len(r.prompt) + r.limit)}
	p.promised += c.promised
	p.matchBlocks(c, r)
	if p.made-len(p.free)-p.idle.Len()+p.promised > p.most {
		p.release(c)
		return nil
	}
	r.cache = c
	p.match(r)
	return c
}

// match lets a request that is about to begin a block of its prompt go on after
// what is known of it.
func (p *pool) match(r *request) {
	c := r.cache
	if c.length()%blockTokens != 0 {
		return
	}
	p.matchBlocks(c, r)
	p.matchRest(c, r)
	r.reused += c.length() - r.read
	r.read = c.length()
}

func (p *pool) matchBlocks(c *cache, r *request) {
	for at := c.length(); at+blockTokens <= r.reusable(); at += blockTokens {
		tokens := r.prompt[at : at+blockTokens]
		b := p.found[c.next(len(c.blocks), r, tokens)]
		if b == nil {
			return
		}
		p.read(b)
		p.take(c, b, tokens)
		c.known++
	}
}

// matchRest looks for a block whose beginning is that of the request's next
// one, as the same prompt's last is. It is copied, since both will write on.
func (p *pool) matchRest(c *cache, r *request) {
	at := c.length()
	for n := min(r.reusable()-at, blockTokens-1); n > 0; n-- {
		tokens := r.prompt[at : at+n]
		if b := p.found[c.next(len(c.blocks), r, tokens)]; b != nil {
			p.take(c, p.copy(b), tokens)
			return
		}
	}
}

// take adds a block that holds tokens.
func (p *pool) take(c *cache, b *block, tokens []int) {
	c.blocks, c.text = append(c.blocks, b), append(c.text, tokens...)
	c.promised--
	p.promised--
}

// extend makes room for n more positions. The cache was promised it.
func (p *pool) extend(c *cache, n int) {
	for len(c.blocks) < blocksFor(c.length()+n) {
		p.take(c, p.fresh(), nil)
	}
}

// keep makes blocks that have become full known, and at the end of a prompt the
// beginning of its last.
func (p *pool) keep(r *request) {
	c := r.cache
	for (c.known+1)*blockTokens <= c.length() {
		p.know(r, c.known, blockTokens)
		c.known++
	}
	last := len(r.prompt) - 1
	if r.generated == 1 && last%blockTokens > 0 {
		p.know(r, last/blockTokens, last%blockTokens)
	}
}

// know notes what the first n tokens of a request's block follow from. Where
// another holds them all already, it takes the block's place.
func (p *pool) know(r *request, i, n int) {
	c := r.cache
	o, b := c.next(i, r, c.text[i*blockTokens:][:n]), c.blocks[i]
	if p.found == nil {
		p.found = map[origin]*block{}
	}
	switch other := p.found[o]; {
	case other == nil:
		p.found[o] = b
		b.entry.origins = append(b.entry.origins, o)
	case other != b && n == blockTokens:
		p.read(other)
		c.blocks[i] = other
		p.leave(b)
	}
}

// release takes a cache's blocks back. The last goes first, so that what comes
// before it is kept longer: without that it could not be found.
func (p *pool) release(c *cache) {
	p.promised -= c.promised
	for _, b := range slices.Backward(c.blocks) {
		p.leave(b)
	}
	*c = cache{}
}

// read and leave count those who read a block.
func (p *pool) read(b *block) {
	if b.entry.readers++; b.entry.place != nil {
		p.idle.Remove(b.entry.place)
		b.entry.place = nil
	}
}

func (p *pool) leave(b *block) {
	if b.entry.readers--; b.entry.readers > 0 {
		return
	}
	if len(b.entry.origins) == 0 {
		p.free = append(p.free, b)
		return
	}
	b.entry.place = p.idle.PushBack(b)
}

// fresh is a block for a sequence that was promised it.
func (p *pool) fresh() *block {
	var b *block
	switch {
	case len(p.free) > 0:
		b = p.free[len(p.free)-1]
		p.free = p.free[:len(p.free)-1]
	case p.made < p.most:
		b = newBlock(p.config)
		p.made++
	default:
		b = p.idle.Remove(p.idle.Front()).(*block)
	}
	return p.rename(b)
}

// rename makes a block one that was never there before.
func (p *pool) rename(b *block) *block {
	for _, o := range b.entry.origins {
		delete(p.found, o)
	}
	p.names++
	b.entry = entry{name: p.names, readers: 1, origins: b.entry.origins[:0]}
	return b
}

// copy is a block with the same content that its reader may write to: the block
// itself when its memory is the last and nobody reads it.
func (p *pool) copy(b *block) *block {
	p.read(b)
	if b.entry.readers == 1 && len(p.free) == 0 && p.made >= p.most && p.idle.Len() == 0 {
		return p.rename(b)
	}
	other := p.fresh()
	copy(other.keys, b.keys)
	copy(other.values, b.values)
	p.leave(b)
	return other
}
