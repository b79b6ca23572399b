package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestMessagesHideNodes checks that messages do not show which nodes they name, also those of earlier
// versions, and that other messages stay as they are.
func TestMessagesHideNodes(t *testing.T) {
	for given, want := range map[string]string{
		"node accounts/system/nodes/n-1 was lost":                       "a node was lost",
		"the allocation on node accounts/system/nodes/n-1 was released": "the allocation on a node was released",
		"the agent on node accounts/system/nodes/n-1 was restarted":     "the agent on a node was restarted",
		"moved to node accounts/system/nodes/n-1":                       "moved to a node",
		"seen on accounts/system/nodes/n-1.":                            "seen on accounts/system/nodes/-.",
		"node n-1 was lost":                                             "a node was lost",
		"node gpu.example.com was shut down":                            "a node was shut down",
		"the allocation on node n-1 was released":                       "the allocation on a node was released",
		"the agent on node n-1 was restarted with it":                   "the agent on a node was restarted with it",
		"node n-1 is being drained (new driver): stopped":               "a node is being drained (new driver): stopped",
		"node n-1 has fewer devices than are allocated":                 "a node has fewer devices than are allocated",
		"node n-1 did not start the attempt: full":                      "a node did not start the attempt: full",
		"the agent of node n-1 runs without --x":                        "the agent of a node runs without --x",
		"moved to node n-1":                                             "moved to a node",
		"r1 shares node n-1 with another replica":                       "r1 shares a node with another replica",
		"and node n2 has none":                                          "and a node has none",

		"waiting for a node that can train":                    "waiting for a node that can train",
		"1 of 2 nodes could run it, but no node has capacity":  "1 of 2 nodes could run it, but no node has capacity",
		"no node is registered: start an agent":                "no node is registered: start an agent",
		"device 3 (L4) of the node failed: it was not found":   "device 3 (L4) of the node failed: it was not found",
		"accounts/acme/nodes/n-1 and accounts/system/models/m": "accounts/acme/nodes/n-1 and accounts/system/models/m",
	} {
		require.Equal(t, want, domain.HideNodes(given))
		require.Equal(t, want, domain.HideNodes(want), "it is idempotent")
	}
}

// TestLabelsOfNodes checks that the label of a node depends on the node and on the key, and that it
// replaces the ID in texts.
func TestLabelsOfNodes(t *testing.T) {
	mask, other := domain.NodeMask{Key: []byte("one")}, domain.NodeMask{Key: []byte("another")}
	label := mask.Label("n1")
	require.Regexp(t, "^node-[0-9a-f]{12}$", label)
	require.Equal(t, label, mask.Label("n1"))
	require.NotEqual(t, label, mask.Label("n2"))
	require.NotEqual(t, label, other.Label("n1"))
	require.Equal(t, "accounts/system/nodes/"+label, mask.Text("accounts/system/nodes/n1"))
	require.Equal(t, "a node, accounts/system/nodes/"+label,
		mask.Text("node accounts/system/nodes/n1, accounts/system/nodes/n1"))
}
