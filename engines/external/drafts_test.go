package external

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/internal/testutil"
)

// TestDraftOptions checks the options with which servers start for speculative decoding.
func TestDraftOptions(t *testing.T) {
	for name, c := range map[string]struct {
		preset string
		draft  bool
		mode   engines.SpeculationMode
		want   []string // DRAFT stands for the directory of the draft model
	}{
		"vLLM, draft model": {VLLM, true, engines.SpeculationMode{NgramLength: 3},
			[]string{"--speculative-config", `{"model":"DRAFT","num_speculative_tokens":5}`}},
		"vLLM, draft tokens": {VLLM, true, engines.SpeculationMode{Tokens: 2},
			[]string{"--speculative-config", `{"model":"DRAFT","num_speculative_tokens":2}`}},
		"vLLM, n-grams": {VLLM, false, engines.SpeculationMode{NgramLength: 3, Tokens: 7},
			[]string{"--speculative-config",
				`{"method":"ngram","num_speculative_tokens":7,"prompt_lookup_max":3,"prompt_lookup_min":3}`}},
		"vLLM, none":     {VLLM, false, engines.SpeculationMode{Tokens: 2}, nil},
		"vLLM, disabled": {VLLM, true, engines.SpeculationMode{NgramLength: 3, Disabled: true}, nil},
		"llama.cpp, draft model": {LlamaCpp, true, engines.SpeculationMode{},
			[]string{"--model-draft", "DRAFT/draft.gguf", "--draft-max", "5"}},
		"llama.cpp, n-grams": {LlamaCpp, false, engines.SpeculationMode{NgramLength: 3}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o, file := unconfined(options(t, c.preset, "writeArgs")), filepath.Join(t.TempDir(), "file")
			o.Env[2] = "FAKE_FILE=" + file
			completer, err := New(o)
			require.NoError(t, err)
			in := files(t)
			in.Speculation = c.mode
			if c.draft {
				in.DraftDir = "DRAFT"
				t.Chdir(t.TempDir())
				require.NoError(t, os.Mkdir("DRAFT", 0o700))
				require.NoError(t, os.WriteFile("DRAFT/draft.gguf", nil, 0o600))
			}
			m, err := completer.Load(t.Context(), in)
			require.NoError(t, err)
			require.NoError(t, m.Close())
			data := testutil.ReadFile(t, file)
			var args []string
			require.NoError(t, json.Unmarshal(data, &args))
			at := slices.IndexFunc(args, func(one string) bool {
				return one == "--speculative-config" || one == "--model-draft"
			})
			if c.want == nil {
				require.Equal(t, -1, at, "%q", args)
				return
			}
			require.Equal(t, c.want, args[at:])
		})
	}
}

// TestEngineWithoutDraftModels checks that a server of unknown options refuses a draft model.
func TestEngineWithoutDraftModels(t *testing.T) {
	completer, err := New(unconfined(options(t, OpenAI, "")))
	require.NoError(t, err)
	in := files(t)
	in.DraftDir = t.TempDir()
	_, err = completer.Load(t.Context(), in)
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.ErrorContains(t, err, "draftModel: the node's engine openai does not support draft models")
}
