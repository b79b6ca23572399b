package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDefaultsOfDeploymentSettings checks that the flags of an update show no defaults, because an
// update changes only the given settings, and that the flags of a create show defaults.
func TestDefaultsOfDeploymentSettings(t *testing.T) {
	help := func(verb string) string {
		var out bytes.Buffer
		c := NewRoot("test")
		c.SetOut(&out)
		c.SetArgs([]string{"deployment", verb, "--help"})
		require.NoError(t, c.Execute())
		return out.String()
	}
	require.Regexp(t, `--max-replicas int .*default: --min-replicas, and at least 1`, help("create"))
	require.Regexp(t, `--min-replicas int .*default 1`, help("create"))
	require.Regexp(t, `--scale-up-window duration .*default 30s`, help("create"))
	update, _, _ := strings.Cut(help("update"), "Common flags:")
	require.Contains(t, update, "--min-replicas")
	require.NotContains(t, update, "(default")
}
