package serve

import (
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
)

// A cache holds the keys and values of one sequence, in blocks that others may
// read too. What it holds of a position never changes, so nobody minds.
type cache struct {
	blocks   []*block
	text     []int // the tokens that are read: a position for each
	promised int   // blocks that the pool owes it
	known    int   // blocks, from the first on, that the pool can find again
}

// length is the positions that are filled.
func (c *cache) length() int { return len(c.text) }

// forget takes the last positions back, until so many are left.
func (c *cache) forget(length int) { c.text = c.text[:length] }

// put stores a position's key and value in a layer.
func (c *cache) put(layer, position int, key, value []float32) {
	c.blocks[position/blockTokens].put(layer, position%blockTokens, key, value)
}

// blockTokens is the positions of a block: those of a panel.
const blockTokens = kernel.PanelWidth

// blocksFor is how many blocks hold n positions.
func blocksFor(n int) int { return (n + blockTokens - 1) / blockTokens }

// A block holds the keys and values of neighbouring positions, in the panels
// that products read: those of the keys of a layer's head have a row for each
// element and a column for each position, those of the values, as many as the
// head's elements need, the other way round.
type block struct {
	dim, perLayer int // elements of a head; heads
	keys, values  []float32
	entry         entry // the pool's
}

// blockSize is how many numbers the keys and the values of a block are.
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

// head is one head's panels.
func (b *block) head(layer, head int) (keys, values []float32) {
	keys, values, k, v := b.heads(layer, head)
	return keys[:k], values[:v]
}

// heads is the panels from one head on, and how far apart two heads' are.
func (b *block) heads(layer, first int) (keys, values []float32, k, v int) {
	n, of := len(b.keys)/(b.dim*blockTokens), layer*b.perLayer+first // heads of all layers
	k, v = len(b.keys)/n, len(b.values)/n
	return b.keys[of*k:], b.values[of*v:], k, v
}

// compare puts the products of queries [m, dim] and a head's first keys into
// scores [m, positions].
func (c *cache) compare(layer, head int, queries, scores kernel.Matrix) {
	for at := 0; at < scores.Cols; at += blockTokens {
		keys, _ := c.blocks[at/blockTokens].head(layer, head)
		kernel.MulPanel(scores.ColRange(at, min(at+blockTokens, scores.Cols)), queries, keys, false)
	}
}

// sum puts the sums of a head's values, each times its weight [m, positions],
// into out [m, dim].
func (c *cache) sum(layer, head int, weights, out kernel.Matrix) {
	for at := 0; at < weights.Cols; at += blockTokens {
		_, values := c.blocks[at/blockTokens].head(layer, head)
		some := weights.ColRange(at, min(at+blockTokens, weights.Cols))
		for i := 0; i < out.Cols; i += kernel.PanelWidth {
			kernel.MulPanel(out.ColRange(i, min(i+kernel.PanelWidth, out.Cols)), some, values[i*blockTokens:], at > 0)
		}
	}
}

// compareHeads is compare of some heads, the query of each of which is a row.
func (c *cache) compareHeads(layer, first int, queries, scores kernel.Matrix) {
	for at := 0; at < scores.Cols; at += blockTokens {
		keys, _, apart, _ := c.blocks[at/blockTokens].heads(layer, first)
		kernel.MulPanels(scores.ColRange(at, min(at+blockTokens, scores.Cols)), queries, keys, apart, false)
	}
}

// sumHeads is sum of some heads, the weights of each of which are a row.
func (c *cache) sumHeads(layer, first int, weights, out kernel.Matrix) {
	for at := 0; at < weights.Cols; at += blockTokens {
		_, values, _, apart := c.blocks[at/blockTokens].heads(layer, first)
		some := weights.ColRange(at, min(at+blockTokens, weights.Cols))
		for i := 0; i < out.Cols; i += kernel.PanelWidth {
			kernel.MulPanels(out.ColRange(i, min(i+kernel.PanelWidth, out.Cols)), some, values[i*blockTokens:], apart, at > 0)
		}
	}
}
