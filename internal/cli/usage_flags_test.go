package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUsageNamesItsFlags checks that errors of the server about the times name the flags.
func TestUsageNamesItsFlags(t *testing.T) {
	c := usageCommand()
	require.Equal(t, "--from", nameOf(c, "startTime"))
	require.Equal(t, "--to", nameOf(c, "endTime"))
	require.Equal(t, "--group-by", nameOf(c, "groupBy"))
}
