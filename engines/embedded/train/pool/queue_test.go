package pool

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
)

// idlePool returns a pool without workers: the test takes the passes.
func idlePool(t *testing.T, workers int) *Pool {
	w := testWeights()
	return newPool(w, w.Hash(), engines.TrainPoolRequest{Parallelism: workers})
}

// enqueue adds a pass of a new run with data of some numbers of tokens.
func enqueue(t *testing.T, p *Pool, share engines.TrainShare, sizes ...int) *call {
	created, err := p.CreateRun(t.Context(), engines.TrainRunConfig{Rank: 1, TrainMLP: true, Share: share})
	require.NoError(t, err)
	return enqueueFor(t, p, created.(*run), sizes...)
}

func enqueueFor(t *testing.T, p *Pool, r *run, sizes ...int) *call {
	pass := &engines.TrainPass{Loss: engines.LossCrossEntropy}
	for _, n := range sizes {
		tokens := make([]int32, n)
		pass.Data = append(pass.Data, engines.TrainDatum{Tokens: tokens, Targets: tokens})
	}
	c := &call{run: r, pass: pass, backward: true}
	require.NoError(t, p.add(t.Context(), c))
	return c
}

func repeat(n, size int) (sizes []int) {
	for range n {
		sizes = append(sizes, size)
	}
	return sizes
}

// tokensOf returns the number of tokens of chunks.
func tokensOf(chunks []chunk) (n int) {
	for _, one := range chunks {
		for _, d := range one.call.pass.Data[one.lo:one.hi] {
			n += len(d.Tokens)
		}
	}
	return n
}

// TestDelay checks how many tokens are computed before a small pass that arrives after huge ones:
// each other account has at most one turn before it, however many runs and data it has.
func TestDelay(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 8))
		p := idlePool(t, 1+rng.IntN(4))
		accounts := 1 + rng.IntN(5)
		for i := range accounts {
			for range 1 + rng.IntN(3) {
				share := engines.TrainShare{Account: fmt.Sprint(i), Weight: rng.IntN(9)}
				enqueue(t, p, share, repeat(2000, 1+rng.IntN(60))...)
			}
		}
		step := func() []chunk {
			chunks := p.take(nil)
			p.finish(chunks, tokensOf(chunks))
			return chunks
		}
		for range rng.IntN(30) {
			step()
		}
		small := enqueue(t, p, engines.TrainShare{Account: "small"}, 30)
		before := 0
		for small.taken == 0 {
			if chunks := step(); small.taken == 0 {
				before += tokensOf(chunks)
			}
		}
		require.LessOrEqual(t, before, accounts*passTokens, "seed %d", seed)
	}
}

// TestRunsOfAnAccount checks that the runs of an account are served by turns.
func TestRunsOfAnAccount(t *testing.T) {
	p := idlePool(t, 1)
	huge := enqueue(t, p, engines.TrainShare{}, repeat(1000, 50)...)
	other := enqueue(t, p, engines.TrainShare{}, repeat(1000, 50)...)
	p.take(nil)
	small := enqueue(t, p, engines.TrainShare{}, 10)
	for range 3 {
		p.tokens = 0
		p.take(nil)
	}
	require.Equal(t, 1, small.taken)
	require.InDelta(t, huge.taken, other.taken, 5)
}

// TestShares checks that accounts get tokens in proportion to their weights while they have passes,
// and that the order of passes follows from the order of calls.
func TestShares(t *testing.T) {
	order := func() (served map[string]int, turns []string) {
		p := idlePool(t, 2)
		served = map[string]int{}
		for i, share := range []engines.TrainShare{{Account: "a"}, {Account: "b", Weight: 3}, {Account: "b", Weight: 3}} {
			enqueue(t, p, share, repeat(3000, 20+30*i)...)
		}
		for range 300 {
			chunks := p.take(nil)
			for i, one := range chunks {
				account := one.call.run.config.Share.Account
				served[account] += tokensOf(chunks[i : i+1])
				turns = append(turns, account)
			}
			p.finish(chunks, tokensOf(chunks))
		}
		return served, turns
	}
	served, turns := order()
	require.InEpsilon(t, 3, float64(served["b"])/float64(served["a"]), 0.02, "%v", served)
	_, again := order()
	require.Equal(t, turns, again)
}
