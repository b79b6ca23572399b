package domain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestNodeThatRegisteredAgainIsNotLost checks that a loss that was planned before the node registered
// again changes nothing.
func TestNodeThatRegisteredAgainIsNotLost(t *testing.T) {
	node := domain.Node{State: domain.NodeReady, Since: noon.Add(time.Second)}
	event, err := domain.LoseNode{Reason: "silent", Registered: noon}.Decide(node, noon)
	require.NoError(t, err)
	require.Nil(t, event)
	event, err = domain.LoseNode{Reason: "silent", Registered: node.Since}.Decide(node, noon)
	require.NoError(t, err)
	require.Equal(t, domain.NodeLost{Reason: "silent"}, event)
}
