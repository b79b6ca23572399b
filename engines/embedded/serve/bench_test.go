package serve

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/safetensors"
	"anneal/engines/embedded/tokenizer"
)

// BenchmarkDecode generates with 1, 8 and 32 requests at once. of-bandwidth is
// the bytes of weights read a second (steps/s × bytes) over what a core can
// read from memory; above 1 the weights came from a cache.
func BenchmarkDecode(b *testing.B) {
	bandwidth := kernel.ReadBandwidth() * 1e9
	for _, shape := range []struct{ hidden, ffn, layers, heads int }{{128, 352, 4, 4}, {512, 1408, 8, 8}} {
		c := config()
		c.HiddenSize, c.IntermediateSize, c.Layers, c.Heads, c.KVHeads = shape.hidden, shape.ffn, shape.layers, shape.heads, shape.heads
		c.HeadDim, c.MaxPositions = shape.hidden/shape.heads, 512
		w := llama.NewWeights(c)
		w.Initialize(1)
		for i := range 6 {
			requests, bits := []int{1, 8, 32}[i%3], []int{32, 16}[i/3]
			if i == 3 {
				for i, v := range w.Flat() {
					w.Flat()[i] = safetensors.RoundBF16(v)
				}
			}
			b.Run(fmt.Sprintf("%.1fM/%dbit/%d", float64(c.Parameters())/1e6, bits, requests), func(b *testing.B) {
				m := start(w, tokenizer.NewBytes(), nil, New(Options{Parallelism: 1}).(completer).options)
				defer m.Close()
				generated := 0
				for b.Loop() {
					generated += generate(b, m, requests, 32, 128)
				}
				rate := float64(generated) / b.Elapsed().Seconds()
				b.ReportMetric(rate, "tok/s")
				b.ReportMetric(rate/float64(requests)*float64(int64(bits/8)*c.Parameters())/bandwidth, "of-bandwidth")
			})
		}
	}
}

// BenchmarkPrompt reads prompts of 400 tokens; of-peak is 2·parameters·tok/s
// over the multiplications and additions that a core can do.
func BenchmarkPrompt(b *testing.B) {
	peak := kernel.PeakGFlops() * 1e9
	c := config()
	c.HiddenSize, c.IntermediateSize, c.Layers, c.Heads, c.KVHeads, c.HeadDim, c.MaxPositions = 128, 352, 4, 4, 4, 32, 512
	w := llama.NewWeights(c)
	w.Initialize(1)
	m := start(w, tokenizer.NewBytes(), nil, New(Options{Parallelism: 1}).(completer).options)
	defer m.Close()
	read := 0
	for b.Loop() {
		generate(b, m, 4, 400, 1)
		read += 4 * 400
	}
	rate := float64(read) / b.Elapsed().Seconds()
	b.ReportMetric(rate, "tok/s")
	b.ReportMetric(2*float64(c.Parameters())*rate/peak, "of-peak")
}

// generate runs requests at once and answers the tokens generated in all.
func generate(b *testing.B, m engines.Model, requests, prompt, most int) int {
	var all sync.WaitGroup
	for i := range requests {
		all.Go(func() {
			req := engines.CompletionRequest{PromptTokens: ids(prompt, i), MaxTokens: most, IgnoreEOS: true}
			_, err := m.Complete(context.Background(), req, func(engines.Chunk) error { return nil })
			require.NoError(b, err)
		})
	}
	all.Wait()
	return requests * most
}

// BenchmarkAddons generates with 32 requests at once that are spread over so
// many addons of rank 8 on all projections; 0 is the base alone.
func BenchmarkAddons(b *testing.B) {
	c := config()
	c.HiddenSize, c.IntermediateSize, c.Layers, c.Heads, c.KVHeads, c.HeadDim, c.MaxPositions = 512, 1408, 8, 8, 8, 64, 512
	w := llama.NewWeights(c)
	w.Initialize(1)
	all := []llama.Module{llama.Query, llama.Key, llama.Value, llama.Output, llama.Gate, llama.Up, llama.Down}
	for _, n := range []int{0, 1, 8, 32} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m := start(w, tokenizer.NewBytes(), nil, New(Options{Parallelism: 1}).(completer).options)
			defer m.Close()
			m.addons = map[string]*addon{}
			for i := range n {
				adapter := llama.NewAdapter(c, 8, 16, all)
				adapter.Initialize(uint64(i))
				m.addons[fmt.Sprint(i)] = &addon{fmt.Sprint(i), adapter.Pack(&c)}
			}
			generated := 0
			for b.Loop() {
				var running sync.WaitGroup
				for i := range 32 {
					req := engines.CompletionRequest{PromptTokens: ids(32, i), MaxTokens: 32, IgnoreEOS: true}
					if n > 0 {
						req.Addon = fmt.Sprint(i % n)
					}
					running.Go(func() {
						_, err := m.Complete(context.Background(), req, func(engines.Chunk) error { return nil })
						require.NoError(b, err)
					})
				}
				running.Wait()
				generated += 32 * 32
			}
			b.ReportMetric(float64(generated)/b.Elapsed().Seconds(), "tok/s")
		})
	}
}
