package serve

import (
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
)

// A cache is the KV cache of one sequence. Sequences can share its blocks, because the keys and
// values of a position never change.
type cache struct {
	blocks     []*block
	tokens     []int // tokens of the sequence in the cache, one for each position
	reserved   int   // number of blocks that the pool has reserved for the sequence
	registered int   // number of leading blocks that the prefix cache has registered
}

// length returns the number of positions in the cache.
func (c *cache) length() int { return len(c.tokens) }

// truncate removes all positions except the first length ones.
func (c *cache) truncate(length int) { c.tokens = c.tokens[:length] }

// put writes the key and the value of a position in a layer.
func (c *cache) put(layer, position int, key, value []float32) {
	c.blocks[position/blockTokens].put(layer, position%blockTokens, key, value)
}

// blockTokens is the number of positions in a block. It equals the number of columns of a panel of
// package kernel.
const blockTokens = kernel.PanelWidth

// blocksFor returns the number of blocks that n positions need.
func blocksFor(n int) int { return (n + blockTokens - 1) / blockTokens }

// A block has the keys and values of blockTokens consecutive positions, as panels of package
// kernel. The panel with the keys of a head has a row for each element and a column for each
// position. The panels with the values of a head have a row for each position; their number depends
// on the number of elements.
type block struct {
	dim, perLayer int // number of elements of a head; number of KV heads of a layer
	keys, values  []float32
	entry         entry // state of the block in the pool
}

// blockSize returns the numbers of elements of the keys and of the values in a block.
func blockSize(c *llama.Config) (keys, values int) {
	heads := c.Layers * c.KVHeads * blockTokens
	return heads * c.HeadDim, heads * blocksFor(c.HeadDim) * kernel.PanelWidth
}

func newBlock(c *llama.Config) *block {
	keys, values := blockSize(c)
	data := make([]float32, keys+values)
	return &block{dim: c.HeadDim, perLayer: c.KVHeads, keys: data[:keys], values: data[keys:]}
}

func (b *block) put(layer, at int, key, value []float32) {
	for head := range b.perLayer {
		keys, values := b.head(layer, head)
		for i, v := range key[head*b.dim : (head+1)*b.dim] {
			keys[i*kernel.PanelWidth+at] = v
		}
		value := value[head*b.dim : (head+1)*b.dim]
		for i := 0; i < b.dim; i += kernel.PanelWidth {
			copy(values[i*blockTokens+at*kernel.PanelWidth:], value[i:min(i+kernel.PanelWidth, b.dim)])
		}
	}
}

// head returns the panels with the keys and the values of a KV head.
func (b *block) head(layer, head int) (keys, values []float32) {
	keys, values, k, v := b.heads(layer, head)
	return keys[:k], values[:v]
}

// heads returns the panels of the KV heads from number first on. k and v are the numbers of
// elements from one head to the next in keys and in values.
func (b *block) heads(layer, first int) (keys, values []float32, k, v int) {
	// n is the number of KV heads in all layers. index is the index among these of the layer's head
	// number first.
	n, index := len(b.keys)/(b.dim*blockTokens), layer*b.perLayer+first
	k, v = len(b.keys)/n, len(b.values)/n
	return b.keys[index*k:], b.values[index*v:], k, v
}

// scoreKeys writes the products of queries [m, dim] with the keys of a KV head to scores [m,
// positions].
func (c *cache) scoreKeys(layer, head int, queries, scores kernel.Matrix) {
	for at := 0; at < scores.Cols; at += blockTokens {
		keys, _ := c.blocks[at/blockTokens].head(layer, head)
		kernel.MulPanel(scores.ColRange(at, min(at+blockTokens, scores.Cols)), queries, keys, false)
	}
}

// sumValues writes the sums of the values of a KV head, weighted by weights [m, positions], to out
// [m, dim].
func (c *cache) sumValues(layer, head int, weights, out kernel.Matrix) {
	for at := 0; at < weights.Cols; at += blockTokens {
		_, values := c.blocks[at/blockTokens].head(layer, head)
		some := weights.ColRange(at, min(at+blockTokens, weights.Cols))
		for i := 0; i < out.Cols; i += kernel.PanelWidth {
			kernel.MulPanel(out.ColRange(i, min(i+kernel.PanelWidth, out.Cols)), some, values[i*blockTokens:], at > 0)
		}
	}
}

// scoreHeads is like scoreKeys for PanelsAtOnce KV heads from number first on, each with one row of
// queries.
func (c *cache) scoreHeads(layer, first int, queries, scores kernel.Matrix) {
	for at := 0; at < scores.Cols; at += blockTokens {
		keys, _, stride, _ := c.blocks[at/blockTokens].heads(layer, first)
		kernel.MulPanels(scores.ColRange(at, min(at+blockTokens, scores.Cols)), queries, keys, stride, false)
	}
}

// sumHeads is like sumValues for PanelsAtOnce KV heads from number first on, each with one row of
// weights.
func (c *cache) sumHeads(layer, first int, weights, out kernel.Matrix) {
	for at := 0; at < weights.Cols; at += blockTokens {
		_, values, _, stride := c.blocks[at/blockTokens].heads(layer, first)
		some := weights.ColRange(at, min(at+blockTokens, weights.Cols))
		for i := 0; i < out.Cols; i += kernel.PanelWidth {
			kernel.MulPanels(out.ColRange(i, min(i+kernel.PanelWidth, out.Cols)), some, values[i*blockTokens:], stride, at > 0)
		}
	}
}
