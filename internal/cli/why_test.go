package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// TestChainOf checks that a chain leads from the newest event of a resource over causes, events of the same
// request and previous changes to the request of an API key.
func TestChainOf(t *testing.T) {
	event := func(position, subject, actor, cause, request string) map[string]any {
		return map[string]any{"position": position, "id": "e" + position, "type": "t", "subject": subject, "actor": actor,
			"cause": cause, "correlation": request}
	}
	const self, other, key = "accounts/a/datasets/d", "accounts/a/deployments/x", "accounts/a/apiKeys/k"
	all := []map[string]any{
		event("1", other, key, "", "r0"),
		event("2", self, key, "", "r1"),
		event("3", other, "task/validator", "e2", "r1"),
		event("4", self, "task/validator", "e3", "r1"),
		event("5", self, "scheduler/jobs", "", ""),
		event("6", self, "accounts/system/nodes/n", "lost", "r0"),
	}
	find := func(filter string) (found []map[string]any, err error) {
		for _, e := range all {
			for _, attribute := range []string{"id", "correlation"} {
				if filter == attribute+` = "`+text(e, attribute)+`"` {
					found = append(found, e)
				}
			}
		}
		return found, nil
	}
	chain := func(upTo int) (steps []string) {
		var events []map[string]any
		for _, e := range all[:upTo] {
			if text(e, "subject") == self {
				events = append(events, e)
			}
		}
		found, err := chainOf(events, find)
		require.NoError(t, err)
		for _, step := range found {
			steps = append(steps, strings.TrimSpace(text(step, "position")+" "+text(step, "relation")))
		}
		return steps
	}
	require.Equal(t, []string{"2"}, chain(2))
	require.Equal(t, []string{"2 cause", "3 cause", "4"}, chain(4))
	require.Equal(t, []string{"2 cause", "3 cause", "4 previous change", "5"}, chain(5))
	require.Equal(t, []string{"1 same request", "6"}, chain(6))

	all = []map[string]any{event("1", self, "scheduler/jobs", "e9", "r9")}
	require.Equal(t, []string{"1"}, chain(1), "the events before are not visible")
}

// withoutAsOf are the commands get and list that have no flag --as-of, with the reason.
var withoutAsOf = map[string]string{
	"anneal server list":             "not in the log",
	"anneal events credentials list": "API keys, which 'anneal key list' lists",
	"anneal backup list":             "not in the log",
	"anneal subscription get":        "shows what its target has received, which is not in the log",
}

// TestGetAndListHaveAsOf checks that each command that gets or lists resources has the flag --as-of.
func TestGetAndListHaveAsOf(t *testing.T) {
	found := 0
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, below := range c.Commands() {
			walk(below)
		}
		name := c.Name()
		if name != "get" && name != "list" && name != "versions" {
			return
		}
		found++
		_, excepted := withoutAsOf[c.CommandPath()]
		require.Equal(t, !excepted, c.Flags().Lookup("as-of") != nil, c.CommandPath())
	}
	walk(NewRoot("test"))
	require.Greater(t, found, 20)
}
