package external

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestServerCannotReadKeys checks that a server cannot read a file of this process, and does not
// run as root.
func TestServerCannotReadKeys(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte("canary"), 0o600))
	o := options(t, VLLM, "readKey")
	o.Env = append(o.Env, "FAKE_KEY="+key)
	c, err := New(o)
	require.NoError(t, err)
	_, err = c.Load(t.Context(), files(t))
	require.ErrorContains(t, err, "read:")
	require.NotContains(t, err.Error(), "canary")
	require.NotContains(t, err.Error(), "root")
}
