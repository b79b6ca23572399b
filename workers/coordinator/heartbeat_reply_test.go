package coordinator

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/workers/protocol"
)

// A logFunc is a slog.Handler that is called with the message of each record.
type logFunc func(message string)

func (logFunc) Enabled(context.Context, slog.Level) bool { return true }
func (f logFunc) Handle(_ context.Context, r slog.Record) error {
	f(r.Message)
	return nil
}
func (f logFunc) WithAttrs([]slog.Attr) slog.Handler { return f }
func (f logFunc) WithGroup(string) slog.Handler      { return f }

// TestHeartbeatIsHandledBeforeItsReply checks that the session of a node is free when the reply to a
// heartbeat is sent. An agent may send its next heartbeat as soon as it has the reply, and a
// heartbeat without a reply stops the agent for its timeout.
func TestHeartbeatIsHandledBeforeItsReply(t *testing.T) {
	log, world := eventlog.NewMemory(), projections.NewWorld()
	key, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err := key.PublicKey()
	require.NoError(t, err)
	enroll := domain.Intend(domain.Nodes, nodeName("n1"), domain.Command[domain.Node](domain.EnrollNode{PublicKey: public,
		JoinToken: "n1"}))
	change, err := eventlog.Do(t.Context(), log, world, eventlog.Request{Time: time.Now()}, enroll)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = world.Run(ctx, log) }()
	require.NoError(t, world.WaitFor(ctx, change.Position()))

	session := &nodeSession{}
	var replies []bool // for each attempt to send a reply: whether the session was free
	logger := slog.New(logFunc(func(message string) {
		if message == "cannot send a reply to an agent: the agent repeats its request" {
			free := session.mu.TryLock()
			if free {
				session.mu.Unlock()
			}
			replies = append(replies, free)
		}
	}))
	recorder := recorder{log: log, world: world, now: time.Now}
	h := heartbeats{recorder: recorder, requests: &requests{recorder: recorder, logger: logger}, logger: logger,
		sessions: &nodeSessions{nodes: map[string]*nodeSession{"n1": session}}}
	for _, boot := range []string{"new", "superseded"} { // the first agent leaves, and the second one is refused
		session.superseded = []string{"superseded"}
		data, err := protocol.Marshal(protocol.Heartbeat{Version: protocol.Version, Boot: boot, Number: 1, Leaving: true})
		require.NoError(t, err)
		h.handle(t.Context(), "n1", &nats.Msg{Reply: "inbox", Data: data}) // cannot be sent without a connection
	}
	require.Equal(t, []bool{true, true}, replies)
}
