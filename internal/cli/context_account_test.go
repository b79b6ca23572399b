package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/datadir"
)

// TestAccountOfAContext checks that the key names the account of a context without one, and that a cut
// key is reported without being repeated.
func TestAccountOfAContext(t *testing.T) {
	key := "ank_acme_ci_" + strings.Repeat("0a", 32) + "5206db44" // with its checksum
	for _, c := range []struct{ account, key, want, fault string }{
		{"other", key, "other", ""},
		{"", key, "acme", ""},
		{"", key[:40], "", "mistyped or cut off"},
		{"", "", "", "mistyped or cut off"},
	} {
		got, err := accountOf(datadir.Context{Account: c.account, APIKey: c.key}, "context.json")
		if c.fault == "" {
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			continue
		}
		require.ErrorContains(t, err, c.fault)
		require.ErrorContains(t, err, "context.json")
		if c.key != "" {
			require.NotContains(t, err.Error(), c.key)
		}
	}
}
