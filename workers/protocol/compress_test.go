package protocol

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestManyAddonsFitIntoAMessage checks that the messages of a node with 24 replicas that each have the
// maximum number of addons can be sent.
func TestManyAddonsFitIntoAMessage(t *testing.T) {
	var sent Heartbeat
	sent.Version = Version
	reply := Assignments{Version: Version}
	for r := range 24 {
		replica, addons := Replica{Replica: fmt.Sprint("r", r), State: domain.ReplicaReady}, ReplicaAddons{}
		for i := range domain.MaxAddons {
			id := fmt.Sprintf("accounts/some-account/deployedModels/customer-%d@2026-11-29T05:%02d:%02d.%09dZ", i, i/60%60, i%60,
				i*7_654_321%1_000_000_000)
			replica.Addons = append(replica.Addons, Addon{ID: id, State: AddonLoaded, Residency: AddonEvicted})
			addons.Keep = append(addons.Keep, id)
		}
		sent.Replicas, reply.Addons = append(sent.Replicas, replica), append(reply.Addons, addons)
	}
	for _, message := range []any{sent, &sent} {
		data, err := Marshal(message)
		require.NoError(t, err)
		require.Less(t, len(data), MaxMessage)
		var received Heartbeat
		require.NoError(t, Unmarshal(data, &received))
		require.Equal(t, sent, received)
	}
	data, err := Marshal(reply)
	require.NoError(t, err)
	var received Assignments
	require.NoError(t, Unmarshal(data, &received))
	require.Equal(t, reply, received)
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(Unmarshal(data, &Report{})),
		"other messages are never compressed")
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(Unmarshal(data[:100], &received)))
	bomb := compress(bytes.Repeat([]byte(" "), maxPlain+1))
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(Unmarshal(bomb, &received)))
}
