package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// TestListsShortenStatusMessages checks that a table shows the beginning of a long status message,
// and that a get and JSON show all of it.
func TestListsShortenStatusMessages(t *testing.T) {
	message := strings.Repeat("rows.jsonl:1: the row is empty; ", 100)
	item := map[string]any{"name": "accounts/acme/datasets/d", "status": map[string]any{"message": message}}
	columns := []column{{"ID", "#name"}, {"STATUS", statusMessage}}
	print := func(format string, one bool) string {
		var out bytes.Buffer
		c := &cobra.Command{}
		c.SetOut(&out)
		c.Flags().String("output", format, "")
		if one {
			require.NoError(t, printItem(c, item, columns...))
		} else {
			require.NoError(t, printItems(c, noRows{}, []map[string]any{item}, columns...))
		}
		return out.String()
	}
	table := print("table", false)
	require.Contains(t, table, message[:100])
	require.Contains(t, table, "…")
	require.Less(t, len(table), 2*maxStatus)
	require.Contains(t, print("table", true), message)
	require.Contains(t, print("json", false), message)
}
