package serve

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/chat"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
)

// adapterOf returns an adapter with random weights for the given modules, which changes the
// completions of w.
func adapterOf(w *llama.Weights, seed uint64, rank int, modules ...llama.Module) *llama.Adapter {
	a := llama.NewAdapter(w.Config, rank, float64(2*rank), modules)
	a.Initialize(seed)
	for i := range a.Flat() {
		a.Flat()[i] += 0.03 * float32((i+int(seed))%7-3)
	}
	a.BaseHash = w.Hash()
	return a
}

// adapters returns adapters of different ranks for different projections, by name.
func adapters(w *llama.Weights) map[string]*llama.Adapter {
	return map[string]*llama.Adapter{
		"all":    adapterOf(w, 5, 4, llama.Query, llama.Key, llama.Value, llama.Output, llama.Gate, llama.Up, llama.Down),
		"few":    adapterOf(w, 6, 8, llama.Query, llama.Value, llama.Down),
		"narrow": adapterOf(w, 7, 1, llama.Up),
		"zero":   llama.NewAdapter(w.Config, 8, 8, []llama.Module{llama.Query, llama.Output}),
	}
}

func loadAddon(t *testing.T, m engines.Model, id string, a *llama.Adapter) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, a.Save(dir, 0))
	require.NoError(t, m.(engines.AddonLoader).LoadAddon(t.Context(), id, dir))
}

// TestAddonLogitsMatchTraining checks that the logits of a request with an addon are
// bit-identical to those of training, for any division of the tokens into steps and beside other
// addons.
func TestAddonLogitsMatchTraining(t *testing.T) {
	w := weights()
	tokens := ids(120, 1)
	for name, adapter := range adapters(w) {
		t.Run(name, func(t *testing.T) {
			want := distribution(llama.NewNet(w, adapter, 1), tokens)
			ours := &addon{id: name, adapter: adapter.Pack(&w.Config)}
			other := &addon{id: "other", adapter: adapterOf(w, 99, 2, llama.Query, llama.Gate).Pack(&w.Config)}
			for _, cut := range [][]int{{120}, {1}, {70, 1}, {7, 9, 64}} {
				d := decoderOf(t, w)
				mine, base, beside := newCache(&w.Config, 150), newCache(&w.Config, 150), newCache(&w.Config, 150)
				for at, step := 0, 0; at < len(tokens); step++ {
					n := min(cut[step%len(cut)], len(tokens)-at)
					got := d.step([]span{
						{cache: base, tokens: tokens[at : at+1]}, {cache: mine, tokens: tokens[at : at+n], last: true, addon: ours},
						{cache: beside, tokens: tokens[at : at+1], addon: other},
					}).Row(0)
					at += n
					probs := append([]float32(nil), got...)
					kernel.Softmax(probs)
					require.Equal(t, want.Row(at-1), probs, "cut %v, after %d tokens", cut, at)
				}
			}
		})
	}
}

// distribution returns the probabilities that net computes after each token.
func distribution(net *llama.Net, tokens []int) kernel.Matrix {
	sequence, scored := make([]int32, len(tokens)+1), make([]bool, len(tokens)+1)
	for i, token := range tokens {
		sequence[i], scored[i+1] = int32(token), true
	}
	var batch llama.Batch
	batch.Add(sequence, scored)
	pass := llama.NewPass(net)
	pass.Forward(&batch)
	return pass.Probabilities()
}

// TestAddonsShareTheModel checks that concurrent requests to several addons and the base model get
// the same completions as alone, and the same as from models with merged adapters.
func TestAddonsShareTheModel(t *testing.T) {
	w := weights()
	shared := open(t, w, Options{Slots: 32, ChunkTokens: 24, Parallelism: 2})
	type question struct {
		req  engines.CompletionRequest
		want completion
	}
	var questions []question
	merged := map[string]engines.Model{"": open(t, w, Options{Slots: 1})}
	for id, adapter := range adapters(w) {
		loadAddon(t, shared, id, adapter)
		merged[id] = open(t, adapter.Merge(w), Options{Slots: 1})
	}
	distinct := map[string]bool{}
	for id, m := range merged {
		for i := range 6 {
			req := engines.CompletionRequest{PromptTokens: ids(3+i*5, i), MaxTokens: 25, IgnoreEOS: true}
			want := complete(t, m, req)
			if i == 0 {
				distinct[want.text] = true
			}
			req.Addon = id
			require.Equal(t, want, complete(t, shared, req), "addon %q completes like a model with the adapter merged", id)
			questions = append(questions, question{req, want})
		}
	}
	require.Len(t, distinct, 4, "all but the zero adapter change the completion")
	for range 2 {
		var all sync.WaitGroup
		for _, q := range questions {
			all.Go(func() {
				got := complete(t, shared, q.req)
				got.chunks = q.want.chunks
				assert.Equal(t, q.want, got, "completion for addon %q", q.req.Addon)
			})
		}
		all.Wait()
	}
}

func TestUnloadAddonKeepsRunningRequests(t *testing.T) {
	w := weights()
	m := open(t, w, Options{})
	adapter := adapters(w)["all"]
	loadAddon(t, m, "a", adapter)
	loadAddon(t, m, "a", adapters(w)["few"])
	req := engines.CompletionRequest{PromptTokens: ids(9, 2), MaxTokens: 60, IgnoreEOS: true, Addon: "a"}
	want := complete(t, m, req)
	require.Equal(t, complete(t, open(t, adapter.Merge(w), Options{}), engines.CompletionRequest{
		PromptTokens: req.PromptTokens, MaxTokens: 60, IgnoreEOS: true,
	}).text,
		want.text, "the ID is already loaded")

	text, unloaded := "", false
	_, err := m.Complete(t.Context(), req, func(c engines.Chunk) error {
		if text += c.Text; !unloaded {
			unloaded = true
			require.NoError(t, m.(engines.AddonLoader).UnloadAddon("a"))
		}
		return nil
	})
	require.NoError(t, err)
	require.True(t, unloaded)
	require.Equal(t, want.text, text)
	_, err = m.Complete(t.Context(), req, nil)
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	var fault *domain.Error
	require.ErrorAs(t, err, &fault)
	require.Equal(t, engines.AddonNotLoaded, fault.Reason)
	require.NoError(t, m.(engines.AddonLoader).UnloadAddon("a"), "unloading twice is not an error")
}

// TestAddonsUseTheirOwnTemplate checks that a conversation for an addon is rendered with the
// addon's chat template.
func TestAddonsUseTheirOwnTemplate(t *testing.T) {
	w := weights()
	m := open(t, w, Options{})
	load := func(id, template string) {
		dir := t.TempDir()
		require.NoError(t, adapters(w)["few"].Save(dir, 0))
		if template != "" {
			require.NoError(t, chat.Save(dir, template))
		}
		require.NoError(t, m.(engines.AddonLoader).LoadAddon(t.Context(), id, dir))
	}
	load("plain", "")
	load("own", "{{ bos_token }}{% for m in messages %}({{ m.role }}) {{ m.content }}{% endfor %}<think>")
	load("broken", "{% for %}")
	const shipped = "<|bos|>be kind<|user|>hello <|end|><|assistant|>"
	for id, want := range map[string]string{
		"": shipped, "plain": shipped, "own": "<|bos|>(system) be kind(user) hello <|end|><think>",
	} {
		all, _, _ := completeWithEcho(t, m, engines.CompletionRequest{
			Chat: hello, MaxTokens: 1, IgnoreEOS: true, RawOutput: true, Addon: id,
		})
		require.Equal(t, want, all.Prompt.Text, "%q", id)
	}
	req := engines.CompletionRequest{Chat: hello, MaxTokens: 1, Reasoning: &engines.Reasoning{Effort: "high"}}
	_, err := m.Complete(t.Context(), req, func(engines.Chunk) error { return nil })
	require.ErrorContains(t, err, "reasoning: has no effect, because this model does not reason")
	req.Addon = "own"
	_, err = m.Complete(t.Context(), req, func(engines.Chunk) error { return nil })
	require.NoError(t, err, "the addon's template supports reasoning")
	_, err = m.Complete(t.Context(), engines.CompletionRequest{Chat: hello, MaxTokens: 1, Addon: "broken"}, nil)
	require.ErrorContains(t, err, "messages: ")
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
}

func TestInvalidAddons(t *testing.T) {
	w := weights()
	m := open(t, w, Options{}).(engines.AddonLoader)
	foreign := adapters(w)["few"]
	foreign.BaseHash = "sha256:other"
	dir := t.TempDir()
	require.NoError(t, foreign.Save(dir, 0))
	err := m.LoadAddon(t.Context(), "x", dir)
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "was trained on the base model")
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(m.LoadAddon(t.Context(), "", dir)))

	foreign.BaseHash = w.Hash()
	require.NoError(t, foreign.Save(dir, 0))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, m.LoadAddon(ended, "x", dir), context.Canceled)
	tuned, err := New(Options{}).Load(t.Context(), engines.ModelFiles{Dir: save(t, w), AdapterDir: dir})
	require.NoError(t, err)
	defer tuned.Close()
	require.ErrorContains(t, tuned.(engines.AddonLoader).LoadAddon(t.Context(), "x", dir), "merged")

	for i := range maxAddons {
		require.NoError(t, m.LoadAddon(t.Context(), fmt.Sprint(i), dir))
	}
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(m.LoadAddon(t.Context(), "one more", dir)))
}
