package serve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/safetensors"
	"anneal/engines/embedded/tokenizer"
)

// config returns the configuration of a small model with the byte vocabulary and grouped-query
// attention.
func config() llama.Config {
	bos := 256
	return llama.Config{
		ModelType: "llama", HiddenSize: 48, IntermediateSize: 80, Layers: 3, Heads: 6, KVHeads: 2, HeadDim: 10,
		VocabSize: 260, MaxPositions: 200, NormEps: 1e-5, RopeTheta: 10000, HiddenAct: "silu", TorchDType: "float32",
		InitializerRange: 0.2, BOS: &bos, EOS: llama.TokenIDs{259}, TieWordEmbeddings: true,
	}
}

func weights(edit ...func(*llama.Config)) *llama.Weights {
	c := config()
	for _, f := range edit {
		f(&c)
	}
	w := llama.NewWeights(c)
	w.Initialize(11)
	return w
}

// save writes the directory of a model with weights w and returns its path.
func save(t *testing.T, w *llama.Weights) string {
	dir := t.TempDir()
	require.NoError(t, w.Save(dir))
	require.NoError(t, tokenizer.NewBytes().Save(dir))
	return dir
}

// open serves a model until the end of the test.
func open(t *testing.T, w *llama.Weights, options Options) engines.Model {
	m, err := New(options).Load(t.Context(), engines.ModelFiles{Dir: save(t, w)})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	return m
}

// A completion holds a complete response.
type completion struct {
	text, finish string
	tokens       []int
	chunks       int
	usage        engines.Usage
}

func complete(t *testing.T, m engines.Model, req engines.CompletionRequest) completion {
	var a completion
	usage, err := m.Complete(t.Context(), req, func(c engines.Chunk) error {
		assert.Empty(t, a.finish, "a chunk after the last")
		assert.True(t, utf8.ValidString(c.Text))
		assert.True(t, c.Text != "" || c.Finish != "", "an empty chunk")
		a.text, a.finish, a.tokens, a.chunks = a.text+c.Text, c.Finish, append(a.tokens, c.Tokens...), a.chunks+1
		return nil
	})
	assert.NoError(t, err)
	a.usage = usage
	a.usage.Timings, a.usage.CachedTokens, a.usage.ContextLength = engines.Timings{}, 0, 0 // vary between runs
	return a
}

// newCache returns a cache with unshared blocks for the given number of positions.
func newCache(c *llama.Config, positions int) *cache {
	all := &cache{}
	for range blocksFor(positions) {
		all.blocks = append(all.blocks, newBlock(c))
	}
	return all
}

func ids(n, seed int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = (i*7919 + seed*104729) % 256
	}
	return out
}

// randomizeVectors sets biases and head norms to random values, so that they affect the logits.
func randomizeVectors(w *llama.Weights) {
	source := rand.New(rand.NewPCG(3, 4))
	for _, l := range w.Layers {
		for _, vector := range append(l.Bias[:], l.QNorm, l.KNorm) {
			for i := range vector {
				vector[i] += float32(source.NormFloat64() * 0.3)
			}
		}
	}
}

// TestLogitsMatchTraining checks that the logits of a decoder are bit-identical to those of
// training, for any division of the tokens into steps.
func TestLogitsMatchTraining(t *testing.T) {
	for name, edit := range map[string]func(*llama.Config){
		"grouped":     func(*llama.Config) {},
		"16 bits":     func(*llama.Config) {},
		"untied":      func(c *llama.Config) { c.TieWordEmbeddings = false },
		"one head":    func(c *llama.Config) { c.Heads, c.KVHeads, c.HeadDim = 1, 1, 32 },
		"every layer": func(c *llama.Config) { c.KVHeads = 6 },
		"qwen2":       func(c *llama.Config) { c.ModelType = "qwen2" },
		"qwen3":       func(c *llama.Config) { c.ModelType = "qwen3" },
		"all biased":  func(c *llama.Config) { c.AttentionBias, c.MLPBias = true, true },
		"llama 3": func(c *llama.Config) {
			c.RopeScaling = &llama.Rotary{Type: "llama3", Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalPositions: 60}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := weights(edit)
			randomizeVectors(w)
			if name == "16 bits" {
				for i, v := range w.Flat() {
					w.Flat()[i] = safetensors.RoundBF16(v)
				}
			}
			tokens := ids(150, 1)
			want := trained(w, tokens)
			for _, cut := range [][]int{{150}, {1}, {70, 1}, {7, 9, 64}, {100, 8, 3, 1}} {
				d := decoderOf(t, w)
				cache := newCache(&w.Config, 150)
				for at, step := 0, 0; at < len(tokens); step++ {
					n := min(cut[step%len(cut)], len(tokens)-at)
					got := d.step([]span{{cache: cache, tokens: tokens[at : at+n], last: true}}).Row(0)
					at += n
					probs := append([]float32(nil), got...)
					kernel.Softmax(probs)
					require.Equal(t, want.Row(at-1), probs, "cut %v, after %d tokens", cut, at)
				}
			}
		})
	}
}

// decoderOf returns a decoder for w, with a context of 200 positions and two workers.
func decoderOf(t *testing.T, w *llama.Weights) *decoder {
	d, err := newDecoder(w.Source(), w.Config, 200, 2)
	require.NoError(t, err)
	return d
}

// unstarted returns a model with weights w, and its scheduler, which does not run.
func unstarted(t testing.TB, w *llama.Weights, o Options) (*model, *scheduler) {
	m, s, err := newModel(w.Source(), w.Config, tokenizer.NewBytes(), nil, New(o).(completer).options)
	require.NoError(t, err)
	return m, s
}

// started serves a model with weights w until the end of the test.
func started(t testing.TB, w *llama.Weights, o Options) *model {
	m, s := unstarted(t, w, o)
	go s.run()
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	return m
}

// trained returns the probabilities that the training pass computes after each token.
func trained(w *llama.Weights, tokens []int) kernel.Matrix {
	sequence, scored := make([]int32, len(tokens)+1), make([]bool, len(tokens)+1)
	for i, token := range tokens {
		sequence[i], scored[i+1] = int32(token), true
	}
	var batch llama.Batch
	batch.Add(sequence, scored)
	pass := llama.NewPass(llama.NewNet(w, nil, 1))
	pass.Forward(&batch)
	return pass.Probabilities()
}

func TestCompletionsDoNotDependOnLoad(t *testing.T) {
	w := weights()
	alone := open(t, w, Options{Slots: 1})
	shared := open(t, w, Options{Slots: 32, ChunkTokens: 24, Parallelism: 2})
	requests := make([]engines.CompletionRequest, 32)
	want := make([]completion, len(requests))
	for i := range requests {
		seed := uint64(i)
		requests[i] = engines.CompletionRequest{PromptTokens: ids(1+i*4, i), MaxTokens: 20 + i, IgnoreEOS: i%3 == 0}
		if i%2 == 1 {
			requests[i].Temperature, requests[i].Seed, requests[i].TopK, requests[i].TopP = 0.8, &seed, 50*(i%4), 0.9
		}
		want[i] = complete(t, alone, requests[i])
		require.NotEmpty(t, want[i].tokens)
	}
	for range 2 {
		var wg sync.WaitGroup
		for i := range requests {
			wg.Go(func() {
				got := complete(t, shared, requests[i])
				got.chunks = want[i].chunks
				assert.Equal(t, want[i], got, "request %d", i)
			})
		}
		wg.Wait()
	}
}

func TestGreedyIsArgmax(t *testing.T) {
	w := weights()
	m := open(t, w, Options{})
	got := complete(t, m, engines.CompletionRequest{PromptTokens: ids(5, 3), MaxTokens: 30, IgnoreEOS: true})
	require.Len(t, got.tokens, 30)
	sequence := append(ids(5, 3), got.tokens...)
	probs := trained(w, sequence)
	for i, token := range got.tokens {
		row := probs.Row(4 + i)
		assert.Equal(t, kernel.Max(row), row[token], "token %d", i)
	}
	assert.Equal(t, engines.FinishLength, got.finish)
	assert.Equal(t, engines.Usage{PromptTokens: 5, CompletionTokens: 30}, got.usage)
	assert.Equal(t, tokenizer.NewBytes().Decode(got.tokens), got.text)
}

// repeater returns a model that repeats a cycle of bytes: its layers add nothing, and its head
// predicts the byte that follows the last one.
func repeater(cycle string) *llama.Weights {
	w := weights(func(c *llama.Config) {
		c.TieWordEmbeddings, c.HiddenSize, c.Layers, c.MaxPositions = false, 64, 1, 100
	})
	for _, m := range []kernel.Matrix{w.Layers[0].O, w.Layers[0].Down, w.Embed, w.Head} {
		clear(m.Data)
	}
	for i := range len(cycle) {
		w.Embed.Row(int(cycle[i]))[i] = 1
		w.Head.Row(int(cycle[(i+1)%len(cycle)]))[i] = 10
	}
	return w
}

func TestStopSequences(t *testing.T) {
	m := open(t, repeater("abcdé東\n"), Options{})
	for name, c := range map[string]struct {
		stop []string
		max  int
		text string
		why  string
	}{
		"none":                     {nil, 5, "bcdé", engines.FinishLength},
		"one":                      {[]string{"d"}, 50, "bc", engines.FinishStop},
		"at once":                  {[]string{"b"}, 50, "", engines.FinishStop},
		"over several tokens":      {[]string{"cdé東"}, 50, "b", engines.FinishStop},
		"one character":            {[]string{"東"}, 50, "bcdé", engines.FinishStop},
		"the first of several":     {[]string{"x", "é", "東", "d"}, 50, "bc", engines.FinishStop},
		"a false beginning":        {[]string{"cdx", "déx", "\na"}, 50, "bcdé東", engines.FinishStop},
		"withheld at the end":      {[]string{"cdé!"}, 3, "bcd", engines.FinishLength},
		"cut in a character":       {nil, 4, "bcd\uFFFD", engines.FinishLength},
		"a stop in what is cut":    {[]string{"\uFFFD"}, 4, "bcd", engines.FinishStop},
		"complete at the last one": {[]string{"d"}, 3, "bc", engines.FinishStop},
	} {
		t.Run(name, func(t *testing.T) {
			got := complete(t, m, engines.CompletionRequest{Prompt: "a", MaxTokens: c.max, Stop: c.stop})
			assert.Equal(t, c.text, got.text)
			assert.Equal(t, c.why, got.finish)
			assert.Equal(t, got.usage.CompletionTokens, len(got.tokens))
		})
	}
}

func TestStreamingSendsEachCharacterOnce(t *testing.T) {
	m := open(t, repeater("abcdé東\n"), Options{})
	var chunks []string
	_, err := m.Complete(
		t.Context(), engines.CompletionRequest{Prompt: "a", MaxTokens: 8, Stop: []string{"dx"}}, func(c engines.Chunk) error {
			chunks = append(chunks, c.Text)
			return nil
		})
	require.NoError(t, err)
	assert.Equal(t, []string{"b", "c", "dé", "東"}, chunks)
}

func TestIgnoreEOS(t *testing.T) {
	w := repeater("abc")
	for i := range w.Head.Cols {
		w.Head.Row('c')[i], w.Head.Row(259)[i] = 0, w.Head.Row('c')[i]
	}
	w.Embed.Row(259)[2] = 1
	m := open(t, w, Options{})
	got := complete(t, m, engines.CompletionRequest{Prompt: "a", MaxTokens: 9})
	assert.Equal(t, completion{text: "b", finish: engines.FinishStop, tokens: []int{'b', 259}, chunks: 2,
		usage: engines.Usage{PromptTokens: 2, CompletionTokens: 2}}, got)
	got = complete(t, m, engines.CompletionRequest{Prompt: "a", MaxTokens: 9, IgnoreEOS: true})
	assert.Equal(t, "bababa", got.text)
}

func TestStopTokensOfGenerationConfig(t *testing.T) {
	dir := save(t, repeater("abcd"))
	require.NoError(t,
		os.WriteFile(filepath.Join(dir, "generation_config.json"), []byte(`{"eos_token_id": [99, 1]}`), 0o644))
	m, err := New(Options{}).Load(t.Context(), engines.ModelFiles{Dir: dir})
	require.NoError(t, err)
	defer m.Close()
	assert.Equal(t, []int{'b', 'c'}, complete(t, m, engines.CompletionRequest{Prompt: "a", MaxTokens: 9}).tokens)
}

func TestWindow(t *testing.T) {
	m := open(t, repeater("ab"), Options{})
	require.Equal(t, 100, m.Info().ContextLength)
	got := complete(t, m, engines.CompletionRequest{Prompt: strings.Repeat("a", 90), MaxTokens: 1000})
	assert.Equal(t, engines.Usage{PromptTokens: 91, CompletionTokens: 9}, got.usage)
	assert.Equal(t, engines.FinishLength, got.finish)

	got = complete(t, m, engines.CompletionRequest{Prompt: "a", MaxTokens: 0})
	assert.Equal(t, completion{finish: engines.FinishLength, chunks: 1, usage: engines.Usage{PromptTokens: 2}}, got)

	dir := save(t, repeater("ab"))
	for asked, want := range map[int]int{0: 100, 20: 20, 1000: 100} {
		m, err := New(Options{}).Load(t.Context(), engines.ModelFiles{Dir: dir, ContextLength: asked})
		require.NoError(t, err)
		require.Equal(t, want, m.Info().ContextLength)
		usage, err := m.Complete(t.Context(), engines.CompletionRequest{Prompt: "aaaa", MaxTokens: 1000, IgnoreEOS: true},
			func(engines.Chunk) error { return nil })
		require.NoError(t, err)
		require.Equal(t, want, usage.PromptTokens+usage.CompletionTokens)
		require.Equal(t, want, usage.ContextLength)
		require.NoError(t, m.Close())
	}

	w := weights()
	keys, values := blockSize(&w.Config)
	tight := open(t, w, Options{CacheBytes: int64(4 * 2 * (keys + values))})
	assert.Equal(t, 64, tight.Info().ContextLength, "bounded by the memory for keys and values")
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			assert.Len(t, complete(t, tight, engines.CompletionRequest{Prompt: "a", MaxTokens: 30, IgnoreEOS: true}).tokens, 30)
		})
	}
	wg.Wait()
}

func TestInvalidRequests(t *testing.T) {
	m := open(t, repeater("ab"), Options{})
	for want, req := range map[string]engines.CompletionRequest{
		"prompt: has 100 tokens":       {Prompt: strings.Repeat("a", 99), MaxTokens: 1},
		"maxTokens: must be 0 or more": {MaxTokens: -1},
		"temperature: must be 0 to 2":  {Temperature: math.NaN()},
		"topK: must not be negative":   {TopK: -1},
		"topP: must be 0 to 1":         {TopP: 1.1},
		"stop: must have at most 4":    {Stop: []string{"a", "b", "c", "d", "e"}},
		"stop[1]: must be UTF-8":       {Stop: []string{"a", ""}},
		"stop[0]: must be UTF-8":       {Stop: []string{"\xff"}},
		"promptTokens[1]: must be":     {PromptTokens: []int{1, 260}},
		"promptTokens[0]: must be":     {PromptTokens: []int{-1}},
	} {
		_, err := m.Complete(t.Context(), req, func(engines.Chunk) error { return errors.New("emitted") })
		assert.ErrorContains(t, err, want)
		assert.Equal(t, domain.InvalidArgument, domain.CodeOf(err), want)
	}
	got := complete(t, m, engines.CompletionRequest{PromptTokens: []int{}, MaxTokens: 1})
	assert.Equal(t, 1, got.usage.PromptTokens, "an empty prompt becomes the BOS token")
}

func TestCancellationFreesTheSlot(t *testing.T) {
	m := open(t, repeater("ab"), Options{Slots: 1})
	ctx, cancel := context.WithCancel(t.Context())
	usage, err := m.Complete(ctx, engines.CompletionRequest{Prompt: "a", MaxTokens: 90}, func(engines.Chunk) error {
		cancel()
		return nil
	})
	if err != nil { // the request may have completed before it was canceled
		assert.ErrorIs(t, err, context.Canceled)
	}
	assert.Positive(t, usage.CompletionTokens)
	broken := errors.New("the client has disconnected")
	_, err = m.Complete(t.Context(), engines.CompletionRequest{Prompt: "a", MaxTokens: 90},
		func(engines.Chunk) error { return broken })
	assert.ErrorIs(t, err, broken)
	assert.Equal(t, "ba", complete(t, m, engines.CompletionRequest{Prompt: "a", MaxTokens: 2}).text)
}

// unserved returns a model without a scheduler, so that its queue fills up.
func unserved(queue int) *model {
	return &model{
		info: engines.ModelInfo{ContextLength: 100}, tokenizer: tokenizer.NewBytes(), vocab: 260, queue: queue,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

func TestFullQueue(t *testing.T) {
	m := unserved(2)
	ctx, cancel := context.WithCancel(t.Context())
	for range 2 {
		r, err := m.newRequest(ctx, engines.CompletionRequest{Prompt: "a", MaxTokens: 5})
		require.NoError(t, err)
		require.NoError(t, m.enqueue(r))
	}
	_, err := m.Complete(t.Context(), engines.CompletionRequest{Prompt: "a", MaxTokens: 5}, nil)
	assert.Equal(t, domain.ResourceExhausted, domain.CodeOf(err))
	cancel()
	r, err := m.newRequest(t.Context(), engines.CompletionRequest{Prompt: "a", MaxTokens: 5})
	require.NoError(t, err)
	assert.NoError(t, m.enqueue(r), "canceled requests leave the queue")
}

func TestCloseFailsPendingRequests(t *testing.T) {
	m, err := New(Options{Slots: 2}).Load(t.Context(), engines.ModelFiles{Dir: save(t, repeater("ab"))})
	require.NoError(t, err)
	var wg sync.WaitGroup
	started := make(chan struct{}, 8)
	for range 8 {
		wg.Go(func() {
			started <- struct{}{}
			_, err := m.Complete(t.Context(), engines.CompletionRequest{Prompt: "a", MaxTokens: 90},
				func(engines.Chunk) error { return nil })
			if err != nil {
				assert.Equal(t, domain.Unavailable, domain.CodeOf(err))
			}
		})
	}
	for range 8 {
		<-started
	}
	require.NoError(t, m.Close())
	wg.Wait()
	_, err = m.Complete(t.Context(), engines.CompletionRequest{Prompt: "a", MaxTokens: 1}, nil)
	assert.Equal(t, domain.Unavailable, domain.CodeOf(err))
	require.NoError(t, m.Close(), "a second Close has no effect")
}

func TestAdapterIsApplied(t *testing.T) {
	w := weights()
	dir := save(t, w)
	adapter := llama.NewAdapter(w.Config, 4, 8, []llama.Module{llama.Query, llama.Down})
	adapter.Initialize(5)
	for i := range adapter.Flat() {
		adapter.Flat()[i] += 0.05 * float32(i%7-3)
	}
	adapter.BaseHash = w.Hash()
	adapterDir := t.TempDir()
	require.NoError(t, adapter.Save(adapterDir, 0))
	m, err := New(Options{}).Load(t.Context(), engines.ModelFiles{Dir: dir, AdapterDir: adapterDir})
	require.NoError(t, err)
	defer m.Close()
	req := engines.CompletionRequest{PromptTokens: ids(9, 2), MaxTokens: 40}
	got := complete(t, m, req)
	assert.Equal(t, complete(t, open(t, adapter.Merge(w), Options{}), req), got)
	assert.NotEqual(t, complete(t, open(t, w, Options{}), req).tokens, got.tokens)

	adapter.BaseHash = "sha256:other"
	require.NoError(t, adapter.Save(adapterDir, 0))
	_, err = New(Options{}).Load(t.Context(), engines.ModelFiles{Dir: dir, AdapterDir: adapterDir})
	assert.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
}

func TestBrokenModels(t *testing.T) {
	_, err := New(Options{}).Load(t.Context(), engines.ModelFiles{Dir: t.TempDir()})
	assert.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))

	dir := save(t, weights(func(c *llama.Config) { c.VocabSize = 256 }))
	_, err = New(Options{}).Load(t.Context(), engines.ModelFiles{Dir: dir})
	assert.ErrorContains(t, err, "belong to different models")

	dir = save(t, weights())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "generation_config.json"), []byte(`{"eos_token_id": "x"}`), 0o644))
	_, err = New(Options{}).Load(t.Context(), engines.ModelFiles{Dir: dir})
	assert.ErrorContains(t, err, "parse generation_config.json")

	w := repeater("ab")
	w.Norm[0] = float32(math.NaN())
	m := open(t, w, Options{})
	_, err = m.Complete(t.Context(), engines.CompletionRequest{Prompt: "a", MaxTokens: 3}, nil)
	assert.ErrorContains(t, err, "not a number")
	assert.Equal(t, domain.DataLoss, domain.CodeOf(err))
	_, err = m.Complete(t.Context(), engines.CompletionRequest{Prompt: "a", MaxTokens: 3}, nil)
	assert.ErrorContains(t, err, "not a number", "the model still responds to requests")
}

func ExampleNew() {
	m, err := New(Options{}).Load(context.Background(), engines.ModelFiles{Dir: "no such model"})
	fmt.Println(m, err)
	// Output: <nil> tokenizer.json is missing from the model directory
}
