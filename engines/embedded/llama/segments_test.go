package llama

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBlocksOfLogits checks that the number of rows whose logits are computed at a time changes
// nothing.
func TestBlocksOfLogits(t *testing.T) {
	c := tiny(false)
	w := NewWeights(c)
	w.Initialize(3)
	net := NewNet(w, nil, 1)
	var batch SegmentBatch
	rng := rand.New(rand.NewPCG(1, 2))
	var gradients []*Gradient
	var weights []float32
	for rank := 1; rank <= 3; rank++ {
		a := NewAdapter(c, rank, 8, []Module{Query, Value, Up, Down})
		a.Initialize(uint64(rank))
		adapter := NewTrainedAdapter(&c, a)
		gradients = append(gradients, adapter.NewGradient(&c))
		batch.Begin(adapter, gradients[rank-1], nil, 0)
		for each := range 3 {
			var tokens, targets []int32
			for range 1 + rng.IntN(c.MaxPositions) {
				tokens = append(tokens, int32(rng.IntN(c.VocabSize)))
				weight := float32(rng.IntN(3)) // a third of the rows are left out
				for range 1 + each {
					targets, weights = append(targets, int32(rng.IntN(c.VocabSize))), append(weights, weight)
				}
			}
			batch.Add(tokens, targets)
		}
	}
	compute := func(rows int) (logp []float32, flat [][]float32) {
		p := NewPass(net)
		p.headRows = rows
		p.ForwardSegments(&batch, true, func(next, grads []float32) {
			copy(grads, weights[len(logp):])
			logp = append(logp, next...)
		})
		p.BackwardSegments()
		for _, g := range gradients {
			flat = append(flat, slices.Clone(g.Flat))
			clear(g.Flat)
		}
		return logp, flat
	}
	logp, flat := compute(1 << 20)
	require.Len(t, logp, len(weights))
	for _, rows := range []int{1, 2, 7, 0} {
		got, gradient := compute(rows)
		require.Equal(t, logp, got, "%d rows", rows)
		require.Equal(t, flat, gradient, "%d rows", rows)
	}
}

// TestArenaShrinks checks that an arena releases memory that is no longer used.
func TestArenaShrinks(t *testing.T) {
	var a arena
	a.vector(1000)
	a.reset()
	require.GreaterOrEqual(t, len(a.data), 1000)
	a.vector(300)
	a.reset()
	require.GreaterOrEqual(t, len(a.data), 1000, "it is still used")
	a.vector(10)
	a.reset()
	require.Less(t, len(a.data), 20)
}

// TestSegmentBytes checks the bound of the memory of a pass, and the memory of a trained adapter.
func TestSegmentBytes(t *testing.T) {
	wide := tiny(false)
	wide.ModelType, wide.Layers, wide.HeadDim, wide.MLPBias = "qwen3", 3, 10, true
	modules := [][]Module{{Query}, {Key, Gate, Up}, {Query, Key, Value, Output, Gate, Up, Down}}
	for _, c := range []Config{tiny(true), wide} {
		w := NewWeights(c)
		w.Initialize(3)
		net := NewNet(w, nil, 1)
		for _, rank := range []int{1, 5, 64} {
			for _, trained := range modules {
				a := NewAdapter(c, rank, 8, trained)
				a.Initialize(1)
				adapter := NewTrainedAdapter(&c, a)
				bytes := 16 * int64(len(a.Flat()))
				for i := range adapter.layers {
					for j := range adapter.layers[i] {
						in := &adapter.layers[i][j]
						bytes += in.a.Bytes() + in.aBack.Bytes()
						for k := range in.low {
							bytes += in.low[k].b.Bytes() + in.low[k].back.Bytes()
						}
					}
				}
				require.Equal(t, bytes, c.TrainedBytes(rank, trained))

				var batch SegmentBatch
				batch.Begin(adapter, adapter.NewGradient(&c), nil, 0)
				for range 2 {
					tokens := make([]int32, c.MaxPositions)
					batch.Add(tokens, tokens)
				}
				p := NewPass(net)
				p.ForwardSegments(&batch, true, func(_, grads []float32) {
					for i := range grads {
						grads[i] = float32(i % 2) // half of the rows are left out
					}
				})
				p.BackwardSegments()
				used := len(p.scores.Data) + len(p.dscores.Data) + p.arena.want*9/8
				for i := range p.tiles {
					one := &p.tiles[i]
					used += int(one.keysT.Bytes()+one.keys.Bytes()+one.values.Bytes()+one.valuesT.Bytes()) / 4
				}
				bound := int(c.SegmentBytes(2*c.MaxPositions, rank) / 4)
				require.LessOrEqual(t, used, bound, "rank %d, %v", rank, trained)
				if len(trained) == int(Modules) {
					require.Greater(t, used, bound*3/4, "rank %d", rank)
				}
			}
		}
	}
}

// TestSegmentsAfterPanic lets a pass of three segments panic while it adds each of the matrices of
// the second one to its gradient. The others, computed again alone, have the gradients of a pass
// without a panic.
func TestSegmentsAfterPanic(t *testing.T) {
	c := tiny(false)
	w := NewWeights(c)
	w.Initialize(3)
	net := NewNet(w, nil, 1)
	modules := []Module{Query, Key, Value, Output, Gate, Up, Down}
	adapters := make([]*TrainedAdapter, 3)
	for i := range adapters {
		a := NewAdapter(c, i+2, 8, modules)
		a.Initialize(uint64(i))
		adapters[i] = NewTrainedAdapter(&c, a)
	}
	// compute adds a pass of some segments to their gradients, and returns what it panics with.
	compute := func(gradients []*Gradient, orders []*Order, segments ...int) (cause any) {
		defer func() { cause = recover() }()
		var batch SegmentBatch
		for _, i := range segments {
			batch.Begin(adapters[i], gradients[i], orders[i], 0)
			tokens := make([]int32, 4+i)
			for j := range tokens {
				tokens[j] = int32((3*i + j) % c.VocabSize)
			}
			batch.Add(tokens, tokens)
		}
		p := NewPass(net)
		p.ForwardSegments(&batch, true, func(_, grads []float32) {
			for i := range grads {
				grads[i] = 1
			}
		})
		p.BackwardSegments()
		return nil
	}
	begin := func() (gradients []*Gradient, orders []*Order) {
		for _, a := range adapters {
			gradients, orders = append(gradients, a.NewGradient(&c)), append(orders, NewOrder(&c))
		}
		return gradients, orders
	}
	want, orders := begin()
	require.Nil(t, compute(want, orders, 0, 1, 2))
	for layer := range c.Layers {
		for _, m := range modules {
			got, orders := begin()
			got[1].adapter.Layers[layer][m].B.Rows = 0
			require.NotNil(t, compute(got, orders, 0, 1, 2))
			require.Equal(t, []bool{false, true, false},
				[]bool{orders[0].Partial(0), orders[1].Partial(0), orders[2].Partial(0)})
			require.Nil(t, compute(got, orders, 2))
			require.Nil(t, compute(got, orders, 0))
			require.Equal(t, want[0].Flat, got[0].Flat, "layer %d, %v", layer, m)
			require.Equal(t, want[2].Flat, got[2].Flat, "layer %d, %v", layer, m)
			orders[1].Fail()
			require.Nil(t, compute(got, orders, 1), "a gradient that has failed gets nothing")
		}
	}
}
