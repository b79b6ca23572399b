package coordinator_test

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

// TestCostOfReplicaStreams compares the CPU time of tokens that a node streams through a ReplicaClient
// with that of plain messages of the same length, by turns. Both include the node and the NATS server.
func TestCostOfReplicaStreams(t *testing.T) {
	streams, tokens, every, turns := 50, 10, 20*time.Millisecond, 1
	full := os.Getenv("ANNEAL_GATEWAY") == "full"
	if full {
		streams, tokens, every, turns = 1000, 40, 100*time.Millisecond, 4
	}
	c := startWithInputs(t)
	node := c.registerNode("n1", "a")
	paced := func(send func(seq uint64) bool) {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for seq := range tokens {
			<-ticker.C
			if !send(uint64(seq + 1)) {
				return
			}
		}
	}
	var responses sync.WaitGroup
	subscribe(t, node, protocol.CompleteSubject("n1"), func(m *nats.Msg) {
		var request protocol.Completion
		if !assert.NoError(t, protocol.Unmarshal(m.Data, &request)) {
			return
		}
		responses.Go(func() {
			paced(func(seq uint64) bool {
				message := protocol.CompletionMessage{Version: protocol.Version, Seq: seq,
					Chunks: []engines.Chunk{{Text: " token", Tokens: []int{7}}}, Done: seq == uint64(tokens)}
				data, err := protocol.Marshal(message)
				return assert.NoError(t, err) && assert.NoError(t, node.Publish(m.Reply, data))
			})
		})
	})

	require.NoError(t, node.Flush()) // the subscription is known to the server
	bare, err := protocol.Marshal(protocol.CompletionMessage{Version: protocol.Version, Seq: 7,
		Chunks: []engines.Chunk{{Text: " token", Tokens: []int{7}}}})
	require.NoError(t, err)
	measure := func(stream func() error) (cpu time.Duration) {
		before := cpuTime(t)
		var all sync.WaitGroup
		for range streams {
			all.Go(func() { assert.NoError(t, stream()) })
		}
		all.Wait()
		responses.Wait()
		return cpuTime(t) - before
	}
	var client, plain time.Duration
	for range turns {
		client += measure(func() error {
			_, err := c.replicas().Complete(t.Context(), "accounts/acme/deployments/d", domain.Replica{ID: "r",
				Node: "accounts/system/nodes/n1"}, engines.CompletionRequest{Prompt: "a"}, func(engines.Chunk) error { return nil })
			return err
		})
		plain += measure(func() error {
			subject := nats.NewInbox()
			messages := make(chan *nats.Msg, protocol.Window)
			s, err := c.server.Coordinator().ChanSubscribe(subject, messages)
			if err != nil {
				return err
			}
			defer func() { _ = s.Unsubscribe() }()
			responses.Go(func() {
				paced(func(uint64) bool { return assert.NoError(t, c.server.Coordinator().Publish(subject, bare)) })
			})
			for range tokens {
				<-messages
			}
			return nil
		})
	}
	n := time.Duration(streams * tokens * turns)
	t.Logf("%d streams: CPU time of a token %s, of a plain message %s", streams, client/n, plain/n)
	if full {
		assert.LessOrEqual(t, (client-plain)/n, 20*time.Microsecond)
	}
}

// cpuTime returns the CPU time of this process so far.
func cpuTime(t *testing.T) time.Duration {
	var u unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
