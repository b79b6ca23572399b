package embedded_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines/embedded"
)

func TestSupports(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, embedded.WriteBase(dir))
	require.NoError(t, os.Remove(filepath.Join(dir, "model.safetensors")))
	require.NoError(t, embedded.Supports(dir))

	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	write("tokenizer.json", `{"model": {"type": "Unigram"}}`)
	require.ErrorContains(t, embedded.Supports(dir), "tokenizer.json")
	write("config.json", `{"model_type": "mamba"}`)
	require.ErrorContains(t, embedded.Supports(dir), "model_type")

	write("adapter_config.json", `{"peft_type": "LORA", "r": 8, "lora_alpha": 16}`)
	require.NoError(t, embedded.Supports(dir))
	write("adapter_config.json", `{"peft_type": "LORA", "r": 8, "lora_alpha": 16, "use_dora": true}`)
	err := embedded.Supports(dir)
	require.ErrorContains(t, err, "use_dora")
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
}
