package embedded_test

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/miniature"
	"anneal/engines/embedded/safetensors"
	"anneal/internal/testutil"
)

// adapterOf writes an adapter of all projections of a model with random weights.
func adapterOf(t *testing.T, base string) (dir string) {
	t.Helper()
	w, err := llama.Load(base)
	require.NoError(t, err)
	var all []llama.Module
	for m := range llama.Modules {
		all = append(all, m)
	}
	a, source, dir := llama.NewAdapter(w.Config, 4, 8, all), rand.New(rand.NewPCG(1, 2)), t.TempDir()
	for i := range a.Flat() {
		a.Flat()[i] = float32(source.NormFloat64() * 0.1)
	}
	a.BaseHash = w.Hash()
	require.NoError(t, a.Save(dir, 0))
	return dir
}

func mergeDir(t *testing.T, base, adapter string) (to string) {
	t.Helper()
	a, err := llama.LoadAdapterFor(t.Context(), adapter, base)
	require.NoError(t, err)
	to = t.TempDir()
	require.NoError(t, llama.MergeDir(t.Context(), to, base, a, llama.MergeOptions{Workers: 2}))
	return to
}

// TestMergedModel checks that the engine computes the same probabilities with a merged model as with
// the base model and the adapter: exactly if the model stores its weights in float32; otherwise the
// merged weights are rounded to the model's number type, by at most 2^-11 of each weight in F16 and
// 2^-9 in BF16. The bounds are three times the mean differences that this rounding makes.
func TestMergedModel(t *testing.T) {
	bounds := map[string]float64{"qwen3": 0, "qwen2": 3.3e-3, "llama": 1.9e-2, "llama3": 1.5e-2} // F32, F16, BF16, BF16
	for _, family := range miniature.Families() {
		t.Run(family, func(t *testing.T) {
			base := t.TempDir()
			require.NoError(t, miniature.Write(base, family))
			adapter := adapterOf(t, base)
			merged := mergeDir(t, base, adapter)
			require.NoError(t, embedded.Supports(merged))

			plain := scores(t, engines.ModelFiles{Dir: base})
			want := scores(t, engines.ModelFiles{Dir: base, AdapterDir: adapter})
			got := scores(t, engines.ModelFiles{Dir: merged})
			require.Len(t, got, len(want))
			difference, effect := 0.0, 0.0
			for i := range want {
				difference += math.Abs(want[i]-got[i]) / float64(len(want))
				effect += math.Abs(want[i]-plain[i]) / float64(len(want))
			}
			t.Logf("mean difference of log-probabilities %.2g; the adapter changes them by %.2g", difference, effect)
			require.LessOrEqual(t, difference, bounds[family])
			require.Greater(t, effect, 0.2, "the adapter must matter")
			sameLayout(t, base, merged)
		})
	}
}

// sameLayout checks that the merged model has the files and the tensors of the base model.
func sameLayout(t *testing.T, base, merged string) {
	t.Helper()
	entries := testutil.ReadDir(t, base)
	written := testutil.ReadDir(t, merged)
	require.Len(t, written, len(entries))
	for _, entry := range entries {
		before := testutil.ReadFile(t, filepath.Join(base, entry.Name()))
		after := testutil.ReadFile(t, filepath.Join(merged, entry.Name()))
		if filepath.Ext(entry.Name()) != ".safetensors" {
			require.Equal(t, string(before), string(after), entry.Name())
			continue
		}
		one, err := safetensors.Open(filepath.Join(base, entry.Name()))
		require.NoError(t, err)
		other, err := safetensors.Open(filepath.Join(merged, entry.Name()))
		require.NoError(t, err)
		require.Equal(t, one.Tensors(), other.Tensors())
		require.Equal(t, one.Metadata(), other.Metadata())
		require.NoError(t, one.Close())
		require.NoError(t, other.Close())
	}
}

// scores returns the log-probabilities of the tokens of a prompt.
func scores(t *testing.T, files engines.ModelFiles) (out []float64) {
	t.Helper()
	model, err := embedded.New(embedded.Options{Parallelism: 1, CacheBytes: 16 << 20}).Completer.Load(t.Context(), files)
	require.NoError(t, err)
	defer func() { assert.NoError(t, model.Close()) }()
	req := engines.CompletionRequest{Prompt: question + answer, MaxTokens: 1, Logprobs: true, Echo: true}
	_, err = model.Complete(t.Context(), req, func(c engines.Chunk) error {
		for _, token := range c.Logprobs {
			out = append(out, token.Logprob)
		}
		return nil
	})
	require.NoError(t, err)
	return out
}

func TestMergeErrors(t *testing.T) {
	base, other, eight := t.TempDir(), t.TempDir(), t.TempDir()
	require.NoError(t, miniature.Write(base, "qwen3"))
	adapter := adapterOf(t, base)
	a, err := llama.LoadAdapterFor(t.Context(), adapter, base)
	require.NoError(t, err)
	refused := func(err error, want string) {
		t.Helper()
		require.ErrorContains(t, err, want)
		require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	}

	w, err := llama.Load(base)
	require.NoError(t, err)
	w.Norm[0] += 0.5
	require.NoError(t, w.Save(other))
	_, err = llama.LoadAdapterFor(t.Context(), adapter, other)
	refused(err, "the adapter was trained on the base model sha256:")

	convert(t, base, eight, "FP8")
	refused(llama.MergeDir(t.Context(), t.TempDir(), eight, a, llama.MergeOptions{}), "is stored in 8 bits")

	for i := range a.Flat() {
		a.Flat()[i] *= 1e4
	}
	half := t.TempDir()
	convert(t, base, half, "FP16")
	refused(llama.MergeDir(t.Context(), t.TempDir(), half, a, llama.MergeOptions{}), "F16 represents numbers up to 65504")
}

// TestMergeFollowsLinks checks that a base model whose files are symbolic links, as in the cache of a
// model hub, is merged like one of regular files.
func TestMergeFollowsLinks(t *testing.T) {
	base, links := t.TempDir(), t.TempDir()
	require.NoError(t, miniature.Write(base, "qwen3"))
	entries := testutil.ReadDir(t, base)
	for _, entry := range entries {
		require.NoError(t, os.Symlink(filepath.Join(base, entry.Name()), filepath.Join(links, entry.Name())))
	}
	adapter := adapterOf(t, base)
	want, got := mergeDir(t, base, adapter), mergeDir(t, links, adapter)
	for _, entry := range entries {
		one := testutil.ReadFile(t, filepath.Join(want, entry.Name()))
		other := testutil.ReadFile(t, filepath.Join(got, entry.Name()))
		require.Equal(t, one, other, entry.Name())
	}
}

// TestMergeLeavesOtherWeightsOut checks that files with unmerged weights are not copied.
func TestMergeLeavesOtherWeightsOut(t *testing.T) {
	base := t.TempDir()
	require.NoError(t, miniature.Write(base, "llama"))
	adapter := adapterOf(t, base)
	for _, name := range []string{"model.gguf", "pytorch_model.bin", "README.md"} {
		require.NoError(t, os.WriteFile(filepath.Join(base, name), []byte("x"), 0o600))
	}
	merged := mergeDir(t, base, adapter)
	assert.NoFileExists(t, filepath.Join(merged, "model.gguf"))
	assert.NoFileExists(t, filepath.Join(merged, "pytorch_model.bin"))
	assert.FileExists(t, filepath.Join(merged, "README.md"))
}
