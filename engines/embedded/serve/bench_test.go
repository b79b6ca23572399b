package serve

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/safetensors"
)

// BenchmarkDecode decodes with 1, 8 and 32 concurrent requests. The metric of-bandwidth is the
// bytes of weights read per second (steps/s × bytes) divided by a core's memory bandwidth. A value
// above 1 means that weights were read from a CPU cache.
func BenchmarkDecode(b *testing.B) {
	bandwidth := kernel.ReadBandwidth() * 1e9
	for _, shape := range []struct{ hidden, ffn, layers, heads int }{{128, 352, 4, 4}, {512, 1408, 8, 8}} {
		c := config()
		c.HiddenSize, c.IntermediateSize, c.Layers, c.Heads, c.KVHeads = shape.hidden, shape.ffn, shape.layers, shape.heads,
			shape.heads
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
				m := started(b, w, Options{Parallelism: 1})
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

// BenchmarkPrompt prefills prompts of 400 tokens. The metric of-peak is 2·parameters·tok/s
// divided by a core's peak rate of multiplications and additions.
func BenchmarkPrompt(b *testing.B) {
	peak := kernel.PeakGFlops() * 1e9
	w := small(512)
	m := started(b, w, Options{Parallelism: 1})
	read := 0
	for b.Loop() {
		generate(b, m, 4, 400, 1)
		read += 4 * 400
	}
	rate := float64(read) / b.Elapsed().Seconds()
	b.ReportMetric(rate, "tok/s")
	b.ReportMetric(2*float64(w.Config.Parameters())*rate/peak, "of-peak")
}

// scopes is the number of the latest cache scope, for requests that must not share prefixes.
var scopes atomic.Int64

func newScope() string { return fmt.Sprint(scopes.Add(1)) }

// generate runs concurrent requests and returns the total number of generated tokens. requests is
// the number of requests, and prompt is the number of tokens in each request's prompt.
func generate(b *testing.B, m engines.Model, requests, prompt, maxTokens int) int {
	var all sync.WaitGroup
	for i := range requests {
		all.Go(func() {
			req := engines.CompletionRequest{
				PromptTokens: ids(prompt, i), MaxTokens: maxTokens, IgnoreEOS: true, CacheScope: newScope(),
			}
			_, err := m.Complete(context.Background(), req, func(engines.Chunk) error { return nil })
			require.NoError(b, err)
		})
	}
	all.Wait()
	return requests * maxTokens
}

// BenchmarkAddons decodes 32 concurrent requests that use n addons of rank 8 on all projections.
// 0 addons is the base model.
func BenchmarkAddons(b *testing.B) {
	c := config()
	c.HiddenSize, c.IntermediateSize, c.Layers, c.Heads, c.KVHeads, c.HeadDim, c.MaxPositions = 512, 1408, 8, 8, 8, 64, 512
	w := llama.NewWeights(c)
	w.Initialize(1)
	all := []llama.Module{llama.Query, llama.Key, llama.Value, llama.Output, llama.Gate, llama.Up, llama.Down}
	for _, n := range []int{0, 1, 8, 32} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m := started(b, w, Options{Parallelism: 1})
			m.addons = map[string]*addon{}
			for i := range n {
				adapter := llama.NewAdapter(c, 8, 16, all)
				adapter.Initialize(uint64(i))
				m.addons[fmt.Sprint(i)] = &addon{id: fmt.Sprint(i), adapter: adapter.Pack(&c)}
			}
			generated := 0
			for b.Loop() {
				var running sync.WaitGroup
				for i := range 32 {
					req := engines.CompletionRequest{PromptTokens: ids(32, i), MaxTokens: 32, IgnoreEOS: true, CacheScope: newScope()}
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

// small returns random weights with the shipped model's dimensions.
func small(window int) *llama.Weights {
	c := config()
	c.HiddenSize, c.IntermediateSize, c.Layers, c.Heads, c.KVHeads, c.HeadDim, c.MaxPositions = 128, 352, 4, 4, 4, 32,
		window
	w := llama.NewWeights(c)
	w.Initialize(1)
	return w
}

// BenchmarkLatency runs 1, 8 and 32 clients, each of which sends requests one after another. A
// prompt has 416 tokens, 400 of which are equal in all requests; 32 tokens are generated. The
// metrics are the time to first token and the time per output token, with ("cached") and without
// the prefix cache.
func BenchmarkLatency(b *testing.B) {
	w := small(512)
	for _, cached := range []bool{false, true} {
		for _, clients := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("%s/%d", map[bool]string{false: "uncached", true: "cached"}[cached], clients), func(b *testing.B) {
				m := started(b, w, Options{Parallelism: 1})
				var first, next times
				for b.Loop() {
					var all sync.WaitGroup
					for i := range clients {
						all.Go(func() {
							for j := range 4 {
								req := engines.CompletionRequest{
									PromptTokens: append(ids(400, 1), ids(16, 100*j+i)...), MaxTokens: 32, IgnoreEOS: true,
								}
								if !cached {
									req.CacheScope = newScope()
								}
								measureLatency(b, m, req, &first, &next)
							}
						})
					}
					all.Wait()
				}
				first.report(b, "first")
				next.report(b, "next")
			})
		}
	}
}

// measureLatency runs a request and records its time to first token in first, and its time per
// output token in next.
func measureLatency(b *testing.B, m engines.Model, req engines.CompletionRequest, first, next *times) {
	began, tokens := time.Now(), 0
	var came time.Time
	_, err := m.Complete(context.Background(), req, func(c engines.Chunk) error {
		if tokens += len(c.Tokens); came.IsZero() {
			came = time.Now()
			first.add(came.Sub(began))
		}
		return nil
	})
	require.NoError(b, err)
	if tokens > 1 {
		next.add(time.Since(came) / time.Duration(tokens-1))
	}
}

// times holds the measurements of concurrent clients.
type times struct {
	mu  sync.Mutex
	all []time.Duration
}

func (t *times) add(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, d)
}

func (t *times) report(b *testing.B, name string) {
	slices.Sort(t.all)
	for _, p := range []int{50, 99} {
		b.ReportMetric(float64(t.all[(len(t.all)-1)*p/100])/1e6, fmt.Sprintf("ms-%s-p%d", name, p))
	}
}

// BenchmarkCopying generates 256 tokens of a text with period 60: without speculative decoding,
// with a predicted output in which every 64th token is wrong, and with n-gram lookup of length
// 2.
func BenchmarkCopying(b *testing.B) {
	for _, shape := range []struct{ hidden, ffn, layers, heads int }{{128, 352, 4, 4}, {512, 1408, 8, 8}} {
		w := repeating(shape.hidden, shape.ffn, shape.layers, shape.heads)
		name := fmt.Sprintf("%.1fM", float64(w.Config.Parameters())/1e6)
		for _, how := range []string{"plain", "predicted", "ngrams"} {
			b.Run(name+"/"+how, func(b *testing.B) {
				m := started(b, w, Options{Parallelism: 1})
				req := engines.CompletionRequest{PromptTokens: ids(64, 1), MaxTokens: 256, IgnoreEOS: true}
				plain := tokensOf(b, m, req)
				if how == "ngrams" {
					m.speculation.NgramLength = 2
				}
				drafted, accepted := 0, 0
				for b.Loop() {
					req.CacheScope = newScope()
					r, err := m.newRequest(context.Background(), req)
					require.NoError(b, err)
					if how == "predicted" {
						r.drafter = &ngramDrafter{
							context: slices.Clone(r.prompt), predicted: withErrors(plain), maxDraft: defaultDraftTokens,
							acceptance: initialAcceptance,
						}
					}
					usage, err := m.process(context.Background(), r, func(engines.Chunk) error { return nil })
					require.NoError(b, err)
					if s := usage.Speculation; s != nil {
						for i := range s.Drafted {
							drafted, accepted = drafted+s.Drafted[i], accepted+s.Accepted[i]
						}
					}
				}
				b.ReportMetric(256*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
				b.ReportMetric(float64(accepted)/float64(max(drafted, 1)), "right")
			})
		}
	}
}

// repeating returns a model that generates the tokens 0 to 59 repeatedly. It computes as much as
// any model of its size.
func repeating(hidden, ffn, layers, heads int) *llama.Weights {
	c := config()
	c.HiddenSize, c.IntermediateSize, c.Layers, c.Heads, c.KVHeads, c.HeadDim = hidden, ffn, layers, heads, heads,
		hidden/heads
	c.MaxPositions, c.TieWordEmbeddings = 512, false
	w := llama.NewWeights(c)
	w.Initialize(1)
	for _, l := range w.Layers {
		clear(l.O.Data)
		clear(l.Down.Data)
	}
	clear(w.Embed.Data)
	clear(w.Head.Data)
	for i := range 60 {
		w.Embed.Row(i)[i], w.Head.Row((i + 1) % 60)[i] = 1, 10
	}
	return w
}

// withErrors returns a copy of text in which every 64th token is replaced.
func withErrors(text []int) []int {
	text = slices.Clone(text)
	for i := 63; i < len(text); i += 64 {
		text[i] = (text[i] + 1) % 256
	}
	return text
}

func tokensOf(b *testing.B, m engines.Model, req engines.CompletionRequest) (tokens []int) {
	_, err := m.Complete(context.Background(), req, func(c engines.Chunk) error {
		tokens = append(tokens, c.Tokens...)
		return nil
	})
	require.NoError(b, err)
	return tokens
}
