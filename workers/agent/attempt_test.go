package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
	"anneal/workers/protocol"
)

// TestSetBaseModel checks that a trained adapter names its base model instead of the directory of this
// node that the trainer has read it from.
func TestSetBaseModel(t *testing.T) {
	dir := t.TempDir()
	a := &attempt{assignment: protocol.TrainAssignment{BaseModel: "accounts/default/models/tiny"}}
	require.NoError(t, a.nameBase(dir), "a full model has no adapter_config.json")
	path := filepath.Join(dir, "adapter_config.json")
	for _, config := range []string{`{"peft_type": "LORA", "base_model_name_or_path": "/var/cache/base/3"}`,
		`{"peft_type": "LORA", "base_model_name_or_path": ""}`} {
		require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
		require.NoError(t, a.nameBase(dir))
		named := testutil.ReadFile(t, path)
		require.JSONEq(t, `{"peft_type": "LORA", "base_model_name_or_path": "tiny"}`, string(named))
	}
	a.assignment.BaseModel = "" // a coordinator of an earlier version sends no base model
	require.NoError(t, a.nameBase(dir))
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	require.NoError(t, a.nameBase(dir))
	a.assignment.BaseModel = "accounts/default/models/tiny"
	require.ErrorContains(t, a.nameBase(dir), "is not a JSON object")
}
