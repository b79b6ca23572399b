package datadir

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTLSConfigErrors checks that an error advises to set --ca only if the file of certificate
// authorities is at fault.
func TestTLSConfigErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.pem")
	_, err := Context{CAFile: missing}.TLSConfig()
	require.ErrorContains(t, err, "load trusted certificates")
	require.ErrorContains(t, err, "with --ca FILE, or as caFile in the context file")
	for _, c := range []Context{{CertFile: missing}, {CertFile: missing, KeyFile: missing}} {
		_, err := c.TLSConfig()
		require.Error(t, err)
		require.NotContains(t, err.Error(), "--ca")
	}
}
