package weights_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/domain/weights"
	"anneal/internal/testutil"
)

// TestMessagesAreBounded checks that long names in a model's files do not make the messages of
// violations, which events contain, equally long.
func TestMessagesAreBounded(t *testing.T) {
	long := strings.Repeat("é", 500_000)
	index := []byte(`{"weight_map": {"` + long + `": "` + long + `"}}`)
	for name, f := range map[string]files{
		"an index": model("llama").with("model.safetensors", nil).with("model.safetensors.index.json", index),
		"a model type": model("llama").with("config.json",
			bytes.Replace(config("llama"), []byte(`"llama"`), []byte(`"`+long+`"`), 1)),
	} {
		report := mustCheck(t, f.directory())
		require.NotEmpty(t, report.Violations, name)
		data := testutil.Marshal(t, report.Violations)
		require.Less(t, len(data), 2000, name)
	}
	adapter := files{"adapter_config.json": []byte(`{"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["` +
		long + `"]}`), "adapter_model.safetensors": tensors(map[string][]int{"a": {1}})}
	report, err := weights.CheckAdapter(adapter.directory(), weights.Config{}, domain.ModelMetadata{})
	require.NoError(t, err)
	require.Len(t, report.Violations, 1)
	require.Contains(t, report.Violations[0].Description,
		"target_modules has 1000004 bytes, but at most 16384 are allowed")
}
