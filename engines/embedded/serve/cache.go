package serve

import (
	"slices"

	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
)

// A cache holds the keys and values of one sequence. Keys lie by position,
// values by element, so that both products of attention read along a row.
type cache struct {
	capacity int // positions
	length   int // positions that are filled
	dim, kv  int // of one head, of all heads
	keys     []float32
	values   []float32
}

// capacityFor is the size of a cache for n positions. The distance of a value's
// elements is an odd multiple of a cache line: were it a power of two, they
// would all compete for the same lines.
func capacityFor(n int) int { return ((n+15)/16 | 1) * 16 }

// newCache makes room for at least so many positions.
func newCache(c *llama.Config, positions int) *cache {
	capacity := capacityFor(positions)
	kv := c.KVHeads * c.HeadDim
	size := c.Layers * kv * capacity
	return &cache{capacity: capacity, dim: c.HeadDim, kv: kv, keys: make([]float32, size), values: make([]float32, size)}
}

// put stores a position's key and value in a layer.
func (c *cache) put(layer, position int, key, value []float32) {
	copy(c.keys[(layer*c.capacity+position)*c.kv:], key)
	column := c.values[layer*c.kv*c.capacity+position:]
	for i, v := range value {
		column[i*c.capacity] = v
	}
}

// head is the first n positions of one head: keys [n, dim], values [dim, n].
func (c *cache) head(layer, head, n int) (keys, values kernel.Matrix) {
	keys = kernel.Matrix{Data: c.keys[layer*c.capacity*c.kv+head*c.dim:], Rows: n, Cols: c.dim, Stride: c.kv}
	values = kernel.Matrix{Data: c.values[(layer*c.kv+head*c.dim)*c.capacity:], Rows: c.dim, Cols: n, Stride: c.capacity}
	return keys, values
}

// A pool hands out caches within a bound on their positions in all.
type pool struct {
	config    *llama.Config
	positions int // bound
	live      int // handed out
	idle      []*cache
}

// take is an empty cache for so many positions, nil when there is no room now.
func (p *pool) take(positions int) *cache {
	if p.live+capacityFor(positions) > p.positions {
		return nil
	}
	best := -1
	for i, c := range p.idle {
		if c.capacity >= positions && p.live+c.capacity <= p.positions && (best < 0 || c.capacity < p.idle[best].capacity) {
			best = i
		}
	}
	var c *cache
	if best >= 0 {
		c = p.idle[best]
		p.idle = slices.Delete(p.idle, best, best+1)
		c.length = 0
	} else {
		c = newCache(p.config, positions)
	}
	p.live += c.capacity
	p.trim()
	return c
}

// give takes a cache back.
func (p *pool) give(c *cache) {
	p.live -= c.capacity
	p.idle = append(p.idle, c)
	p.trim()
}

// trim forgets idle caches, the oldest first, until all are within the bound.
func (p *pool) trim() {
	total := p.live
	for _, c := range p.idle {
		total += c.capacity
	}
	for len(p.idle) > 0 && total > p.positions {
		total -= p.idle[0].capacity
		p.idle = slices.Delete(p.idle, 0, 1)
	}
}
