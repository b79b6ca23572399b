package serve

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/llama"
)

// otherWeights have the dimensions of weights and other values.
func otherWeights(seed uint64) *llama.Weights {
	w := weights()
	w.Initialize(seed)
	return w
}

// TestVariants checks that a second set of weights serves beside the first, each as if alone
// and with separate prefix caches, and that requests in progress complete after unloading.
func TestVariants(t *testing.T) {
	m := open(t, weights(), Options{Slots: 8, ChunkTokens: 24, Parallelism: 2})
	loader := m.(engines.WeightsLoader)
	want := map[string]answer{}
	req := engines.CompletionRequest{PromptTokens: ids(70, 1), MaxTokens: 40, IgnoreEOS: true}
	for id, w := range map[string]*llama.Weights{"": weights(), "one": otherWeights(12), "two": otherWeights(13)} {
		want[id] = ask(t, open(t, w, Options{Slots: 1}), req)
	}
	require.NotEqual(t, want[""].text, want["one"].text)
	require.NotEqual(t, want["one"].text, want["two"].text)

	require.NoError(t, loader.LoadWeights(t.Context(), "one", save(t, otherWeights(12))))
	var all sync.WaitGroup
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	for _, id := range []string{"", "one", "", "one"} {
		all.Go(func() {
			req := req
			req.Addon = id
			text := ""
			_, err := m.Complete(t.Context(), req, func(c engines.Chunk) error {
				if id == "one" {
					begin()
				}
				text += c.Text
				return nil
			})
			assert.NoError(t, err)
			assert.Equal(t, want[id].text, text)
		})
	}
	<-begun
	require.NoError(t, loader.LoadWeights(t.Context(), "two", save(t, otherWeights(13))))
	require.NoError(t, loader.LoadWeights(t.Context(), "two", save(t, otherWeights(12))), "what is loaded stays as it is")
	asked := req
	asked.Addon = "two"
	require.Equal(t, want["two"], ask(t, m, asked))
	all.Wait()
	require.NoError(t, loader.UnloadAddon("one"))
	asked.Addon = "one"
	_, err := m.Complete(t.Context(), asked, func(engines.Chunk) error { return nil })
	require.Equal(t, engines.ErrAddonNotLoaded("one").Error(), err.Error())
	require.Equal(t, want[""], ask(t, m, req))
}

func TestIncompatibleWeights(t *testing.T) {
	m := open(t, weights(), Options{}).(engines.WeightsLoader)
	wider := weights(func(c *llama.Config) { c.IntermediateSize *= 2 })
	stranger := save(t, weights())
	require.NoError(t,
		os.WriteFile(filepath.Join(stranger, "tokenizer.json"),
			append(read(t, filepath.Join(stranger, "tokenizer.json")), '\n'), 0o600))
	for name, test := range map[string]struct{ dir, says string }{
		"another shape":     {save(t, wider), "another model"},
		"another tokenizer": {stranger, "another tokenizer.json"},
		"nothing":           {t.TempDir(), "config.json"},
	} {
		t.Run(name, func(t *testing.T) {
			err := m.LoadWeights(t.Context(), "id", test.dir)
			require.ErrorContains(t, err, test.says)
			require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
		})
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}
