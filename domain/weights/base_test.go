package weights

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSetBaseModel(t *testing.T) {
	for name, c := range map[string]struct{ config, base, fallback, want string }{
		"no name":            {`{"r": 8}`, "", "tiny", "tiny"},
		"an empty name":      {`{"r": 8, "base_model_name_or_path": ""}`, "", "tiny", "tiny"},
		"null":               {`{"r": 8, "base_model_name_or_path": null}`, "", "tiny", "tiny"},
		"a path":             {`{"r": 8, "base_model_name_or_path": "/root/cache/7"}`, "", "tiny", "tiny"},
		"a name on a hub":    {`{"r": 8, "base_model_name_or_path": "org/tiny"}`, "", "tiny", ""},
		"a given base":       {`{"r": 8, "base_model_name_or_path": "org/tiny"}`, "/here/base", "tiny", "/here/base"},
		"the same base":      {`{"r": 8, "base_model_name_or_path": "tiny"}`, "tiny", "tiny", ""},
		"neither is known":   {`{"r": 8}`, "", "", ""},
		"special characters": {`{"r": 8}`, "/a&b <c>", "", "/a&b <c>"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := SetBaseModel([]byte(c.config), c.base, c.fallback)
			require.NoError(t, err)
			if c.want == "" {
				require.Nil(t, got)
				return
			}
			var fields map[string]any
			require.NoError(t, json.Unmarshal(got, &fields))
			require.Equal(t, map[string]any{"r": 8.0, "base_model_name_or_path": c.want}, fields)
			require.NotContains(t, string(got), `\u0026`)
		})
	}
	_, err := SetBaseModel([]byte("[]"), "a", "b")
	require.True(t, IsInvalid(err))
}
