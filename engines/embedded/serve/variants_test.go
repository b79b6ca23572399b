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
	"anneal/internal/testutil"
)

// otherWeights returns random weights with the same dimensions as the result of the function
// weights.
func otherWeights(seed uint64) *llama.Weights {
	w := weights()
	w.Initialize(seed)
	return w
}

// TestVariants checks that further sets of weights are served beside the first. Each set must
// give the completions that it gives alone, also while another set is loaded. Loading a set under
// an ID that is already loaded must have no effect, and an unloaded set must not be served.
func TestVariants(t *testing.T) {
	m := open(t, weights(), Options{Slots: 8, ChunkTokens: 24, Parallelism: 2})
	loader := m.(engines.WeightsLoader)
	want := map[string]completion{}
	req := engines.CompletionRequest{PromptTokens: ids(70, 1), MaxTokens: 40, IgnoreEOS: true}
	for id, w := range map[string]*llama.Weights{"": weights(), "one": otherWeights(12), "two": otherWeights(13)} {
		want[id] = complete(t, open(t, w, Options{Slots: 1}), req)
	}
	require.NotEqual(t, want[""].text, want["one"].text)
	require.NotEqual(t, want["one"].text, want["two"].text)

	require.NoError(t, loader.LoadWeights(t.Context(), "one", save(t, otherWeights(12))))
	var all sync.WaitGroup
	started := make(chan struct{})
	begin := sync.OnceFunc(func() { close(started) })
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
	<-started
	require.NoError(t, loader.LoadWeights(t.Context(), "two", save(t, otherWeights(13))))
	require.NoError(t, loader.LoadWeights(t.Context(), "two", save(t, otherWeights(12))), "the ID is already loaded")
	asked := req
	asked.Addon = "two"
	require.Equal(t, want["two"], complete(t, m, asked))
	all.Wait()
	require.NoError(t, loader.UnloadAddon("one"))
	asked.Addon = "one"
	_, err := m.Complete(t.Context(), asked, func(engines.Chunk) error { return nil })
	require.Equal(t, engines.ErrAddonNotLoaded("one").Error(), err.Error())
	require.Equal(t, want[""], complete(t, m, req))
}

func TestIncompatibleWeights(t *testing.T) {
	m := open(t, weights(), Options{}).(engines.WeightsLoader)
	wider := weights(func(c *llama.Config) { c.IntermediateSize *= 2 })
	otherTokenizer := save(t, weights())
	require.NoError(t,
		os.WriteFile(filepath.Join(otherTokenizer, "tokenizer.json"),
			append(read(t, filepath.Join(otherTokenizer, "tokenizer.json")), '\n'), 0o600))
	for name, test := range map[string]struct{ dir, message string }{
		"another shape":     {save(t, wider), "the weights have the dimensions"},
		"another tokenizer": {otherTokenizer, "the tokenizer.json of the weights differs"},
		"nothing":           {t.TempDir(), "config.json"},
	} {
		t.Run(name, func(t *testing.T) {
			err := m.LoadWeights(t.Context(), "id", test.dir)
			require.ErrorContains(t, err, test.message)
			require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
		})
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data := testutil.ReadFile(t, path)
	return data
}
