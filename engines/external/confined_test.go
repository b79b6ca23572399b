package external

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestServersReadNoKeys starts a server that looks for a key of ours and for the network.
func TestServersReadNoKeys(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte("canary"), 0o600))
	o := options(t, VLLM, "peeks")
	o.Env = append(o.Env, "FAKE_KEY="+key)
	c, err := New(o)
	require.NoError(t, err)
	_, err = c.Load(t.Context(), files(t))
	require.ErrorContains(t, err, "saw:")
	require.NotContains(t, err.Error(), "canary")
	require.NotContains(t, err.Error(), "root")
}
