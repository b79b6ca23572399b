package serve

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines/embedded/llama"
)

// poolTest runs sequences against a pool. Instead of keys and values, it writes a hash of
// everything on which they depend: addon, scope and the tokens up to the position.
type poolTest struct {
	t       *testing.T
	pool    pool
	running []*request
	cached  int
}

func newPooled(t *testing.T, blocks int) *poolTest {
	return &poolTest{t: t, pool: pool{config: &llama.Config{Layers: 1, KVHeads: 1, HeadDim: 2}, maxBlocks: blocks}}
}

// content returns the key and the value that poolTest writes for the last position of text.
func content(r *request, text []int) []float32 {
	h := fnv.New32a()
	h.Write([]byte(r.scope + "|" + r.addon.name() + "|"))
	for _, token := range text {
		h.Write([]byte{byte(token)})
	}
	return []float32{float32(h.Sum32() & 0xffff), float32(h.Sum32() >> 16)}
}

func (p *poolTest) admit(r *request) bool {
	if p.pool.admit(r) == nil {
		return false
	}
	p.running = append(p.running, r)
	p.check()
	return true
}

// step computes n tokens of the prompt. After the prompt, it computes n tokens that next returns,
// and then drops the last ones. back is the number of dropped tokens.
func (p *poolTest) step(r *request, n, back int, next func() int) {
	c := r.cache
	var tokens []int
	if r.read < len(r.prompt) {
		p.pool.match(r)
		n = min(n, len(r.prompt)-r.read)
		tokens = r.prompt[r.read : r.read+n]
		r.read, back = r.read+n, 0
		r.generated = max(r.read-len(r.prompt)+1, 0)
	} else {
		for range min(n, len(r.prompt)+r.limit-c.length()) {
			tokens = append(tokens, next())
		}
		r.generated++
	}
	p.pool.extend(c, len(tokens))
	for _, token := range tokens {
		c.tokens = append(c.tokens, token)
		what := content(r, c.tokens)
		c.put(0, c.length()-1, what, what)
	}
	c.truncate(c.length() - min(back, len(tokens)))
	p.pool.keep(r)
	p.check()
}

func (p *poolTest) end(i int) {
	r := p.running[i]
	p.cached += r.cachedTokens
	p.pool.release(r.cache)
	p.running = append(p.running[:i], p.running[i+1:]...)
	p.check()
}

// check requires that the pool's invariants hold.
func (p *poolTest) check() {
	t, refs, reserved := p.t, map[*block]int{}, 0
	for _, r := range p.running {
		reserved += r.cache.reserved
		for _, b := range r.cache.blocks {
			refs[b]++
		}
		var keys, values = r.cache.one(r.cache.length())
		for i := range r.cache.length() {
			if want := content(r, r.cache.tokens[:i+1]); !slices.Equal(want, keys[i]) || !slices.Equal(want, values[i]) {
				require.Failf(t, "wrong keys", "position %d of %v", i, r.cache.tokens)
			}
		}
	}
	require.Equal(t, reserved, p.pool.reserved)
	require.Equal(t, p.pool.allocated, len(refs)+len(p.pool.free)+p.pool.lru.Len(), "each block is in one list")
	require.LessOrEqual(t, len(refs)+p.pool.reserved, p.pool.maxBlocks)
	require.LessOrEqual(t, p.pool.allocated, p.pool.maxBlocks)
	for b, n := range refs {
		require.Equal(t, n, b.entry.refs)
		require.Nil(t, b.entry.element)
	}
	for o, b := range p.pool.index {
		require.True(t, slices.Contains(b.entry.keys, o))
	}
}

// one returns the keys and values of the first n positions for the only KV head.
func (c *cache) one(n int) (keys, values [][]float32) {
	for i := range n {
		k, v := c.blocks[i/blockTokens].head(0, 0)
		at := i % blockTokens
		keys, values = append(keys, []float32{k[at], k[blockTokens+at]}), append(values, v[at*blockTokens:][:2])
	}
	return keys, values
}

// TestPool checks the invariants and the contents of a pool while many sequences with common
// prefixes run.
func TestPool(t *testing.T) {
	for seed := range uint64(6) {
		source := rand.New(rand.NewPCG(seed, 4))
		p := newPooled(t, 8+source.IntN(12))
		addons := []*addon{nil, {id: "a"}, {id: "b"}}
		rejected := 0
		for range 600 {
			switch i := source.IntN(5); {
			case i == 0:
				r := &request{scope: fmt.Sprint(source.IntN(2)), addon: addons[source.IntN(3)], limit: source.IntN(80)}
				for n := 1 + source.IntN(150); n > 0; n-- {
					r.prompt = append(r.prompt, len(r.prompt)/70*source.IntN(2))
				}
				r.output.echo = len(r.prompt)
				if !p.admit(r) {
					rejected++
				}
			case len(p.running) == 0:
			case i == 1:
				p.end(source.IntN(len(p.running)))
			default:
				p.step(p.running[source.IntN(len(p.running))], 1+source.IntN(70), source.IntN(3),
					func() int { return source.IntN(2) })
			}
		}
		require.Positive(t, rejected)
		require.Positive(t, p.cached)
		for len(p.running) > 0 {
			p.end(0)
		}
		long := &request{prompt: ids(p.pool.maxBlocks*blockTokens, 1), scope: "another"}
		require.True(t, p.admit(long), "an unused pool has capacity for the longest")
		p.step(long, len(long.prompt), 0, nil)
	}
}

// play admits a request, prefills its prompt, and returns the number of prompt tokens that came
// from the prefix cache.
func (p *poolTest) play(r *request) int {
	require.True(p.t, p.admit(r))
	for r.read < len(r.prompt) {
		p.step(r, 50, 0, nil)
	}
	return r.cachedTokens
}

func TestPrefixMatches(t *testing.T) {
	text, other := ids(200, 1), ids(200, 2)
	a, b := &addon{id: "a"}, &addon{id: "a"} // two addons, loaded under one ID one after the other
	type query struct {
		prompt []int
		scope  string
		addon  *addon
		output outputOptions
	}
	for name, c := range map[string]struct {
		first, second query
		want          int
	}{
		"the same prompt, except the last token": {query{prompt: text}, query{prompt: text}, 199},
		"the same prompt of full blocks":         {query{prompt: text[:192]}, query{prompt: text[:192]}, 191},
		"the same prompt of one token":           {query{prompt: text[:1]}, query{prompt: text[:1]}, 0},
		"the same prompt of two tokens":          {query{prompt: text[:2]}, query{prompt: text[:2]}, 1},
		"a longer prompt":                        {query{prompt: text[:100]}, query{prompt: text}, 99},
		"a shorter prompt":                       {query{prompt: text}, query{prompt: text[:100]}, 96},
		"a prompt that diverges":                 {query{prompt: text}, query{prompt: append(text[:140:140], other...)}, 128},
		"another prompt":                         {query{prompt: text}, query{prompt: other}, 0},
		"the same suffix": {
			query{prompt: text}, query{prompt: slices.Concat(other[:32], text[32:])}, 0,
		},
		"another scope": {
			query{prompt: text, scope: "acme"}, query{prompt: text, scope: "other"}, 0,
		},
		"the same addon":         {query{prompt: text, addon: a}, query{prompt: text, addon: a}, 199},
		"an addon and the model": {query{prompt: text, addon: a}, query{prompt: text}, 0},
		"two addons with one ID": {query{prompt: text, addon: a}, query{prompt: text, addon: b}, 0},
		"a prompt with logprobs": {
			query{prompt: text}, query{prompt: text, output: outputOptions{logprobs: true}}, 0,
		},
		"a prompt with logprobs of its end": {
			query{prompt: text}, query{prompt: text, output: outputOptions{logprobs: true, echo: 120}}, 96,
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, ended := range []bool{false, true} {
				p := newPooled(t, 40)
				first := &request{prompt: c.first.prompt, scope: c.first.scope, addon: c.first.addon}
				second := &request{prompt: c.second.prompt, scope: c.second.scope, addon: c.second.addon, output: c.second.output}
				first.output.echo = len(first.prompt)
				p.play(first)
				if ended {
					p.end(0)
				}
				p.play(second)
				require.Equal(t, c.want, second.cachedTokens, "the first has ended: %v", ended)
			}
		})
	}
}

// TestCompletionsAreCached checks that the next turn of a conversation reuses the completion.
func TestCompletionsAreCached(t *testing.T) {
	p := newPooled(t, 40)
	first := &request{prompt: ids(40, 1), limit: 90}
	p.play(first)
	for range 3 {
		p.step(first, 20, 3, func() int { return 7 })
	}
	require.Equal(t, 91, first.cache.length())
	completed := append([]int(nil), first.cache.tokens...)
	p.end(0)
	require.Equal(t, 64, p.play(&request{prompt: append(completed, ids(30, 2)...)}))
}

// TestEviction checks that blocks are evicted least recently used first, the last of a sequence
// before its predecessors.
func TestEviction(t *testing.T) {
	p := newPooled(t, 7)
	a, b := ids(3*blockTokens, 1), ids(3*blockTokens, 2)
	for _, prompt := range [][]int{a, b, a} {
		p.play(&request{prompt: prompt})
		p.end(0)
	}
	p.play(&request{prompt: ids(blockTokens+4, 3)}) // takes the free block and evicts the last of b
	p.end(0)
	require.Equal(t, 3*blockTokens-1, p.play(&request{prompt: a}),
		"the last block of a was copied, which evicted the next block of b")
	p.end(0)
	require.Equal(t, blockTokens, p.play(&request{prompt: b}))
}
