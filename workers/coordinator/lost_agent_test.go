package coordinator_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
	"anneal/internal/testutil"
	"anneal/workers/protocol"
)

// TestLostAgent checks how a request ends when its agent is lost before it receives the request,
// and when after that the agent does not return, is restarted, or was only disconnected for a short
// time.
func TestLostAgent(t *testing.T) {
	for name, one := range map[string]struct {
		// what happens after the agent received the request; nil when no agent receives it
		accepted func(c *cluster, node *nats.Conn)
		reason   string // expected reason of the error; "" means that the response is complete
	}{
		"before the request": {nil, engines.ReplicaUnreachable},
		"for good":           {func(_ *cluster, node *nats.Conn) { node.Close() }, engines.ReplicaLost},
		"restarted": {func(c *cluster, node *nats.Conn) {
			node.Close()
			c.agent("n1", simulated.New(simulated.Options{}))
		}, engines.ReplicaLost},
		"disconnected": {func(_ *cluster, node *nats.Conn) { _ = node.ForceReconnect() }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t)
			accepted, acks := make(chan string, 1), make(chan struct{}, 1)
			var node *nats.Conn
			if one.accepted != nil {
				node = c.connectNode("n1")
				subscribe(t, node, protocol.CompleteSubject("n1"), func(m *nats.Msg) { accepted <- m.Reply })
				subscribe(t, node, protocol.AckSubject("n1"), func(*nats.Msg) {
					select {
					case acks <- struct{}{}:
					default:
					}
				})
				require.NoError(t, node.Flush())
			}
			began, client, ended := time.Now(), c.replicas(), make(chan error, 1)
			client.KeepAlive = 20 * time.Millisecond
			go func() {
				_, err := client.Complete(t.Context(), deploymentName, domain.Replica{ID: "r1", Node: nodeName("n1")},
					engines.CompletionRequest{MaxTokens: 1}, func(engines.Chunk) error { return nil })
				ended <- err
			}()
			if one.accepted != nil {
				reply := <-accepted
				one.accepted(c, node)
				if one.reason == "" {
					for range 5 {
						c.wait("an acknowledgement", acks)
					}
					data := testutil.Marshal(t, protocol.CompletionMessage{Version: protocol.Version, Seq: 1, Done: true})
					require.NoError(t, node.Publish(reply, data))
				}
			}
			err := <-ended
			require.Less(t, time.Since(began), protocol.StreamTimeout, "the loss is noticed before the timeout")
			if one.reason == "" {
				require.NoError(t, err)
				return
			}
			var failure *domain.Error
			require.ErrorAs(t, err, &failure)
			require.Equal(t, domain.Unavailable, failure.Code)
			require.Equal(t, one.reason, failure.Reason, "%v", err)
		})
	}
}

func subscribe(t *testing.T, node *nats.Conn, subject string, handle nats.MsgHandler) {
	_, err := node.Subscribe(subject, handle)
	require.NoError(t, err)
}
