package coordinator_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/natsserver"
	"anneal/projections"
	"anneal/workers/coordinator"
	"anneal/workers/protocol"
)

// startWithTokens starts a cluster whose admission accepts the given tokens and closes the
// connections of nodes that are no longer enrolled.
func startWithTokens(t *testing.T, tokens map[string]coordinator.JoinToken) *cluster {
	c := start(t)
	admission := *c.admission.Load()
	admission.Sessions = c.server
	admission.ReadToken = func(token string, now time.Time) (coordinator.JoinToken, error) {
		if known, ok := tokens[token]; ok {
			return known, nil
		}
		return coordinator.JoinToken{}, domain.Errorf(domain.Unauthenticated, "unknown token")
	}
	c.admission.Store(&admission)
	c.background(admission.Run)
	return c
}

// join connects to NATS as a node's agent.
func (c *cluster) join(node, token string, key nkeys.KeyPair, more ...nats.Option) (*nats.Conn, error) {
	options := append(natsserver.AgentOptions(node, token, key), nats.RetryOnFailedConnect(false), nats.NoReconnect())
	conn, err := nats.Connect(c.server.URL(), append(options, more...)...)
	if err == nil {
		c.Cleanup(conn.Close)
	}
	return conn, err
}

func (c *cluster) node(id string) domain.Node {
	row, _ := c.world.View().Nodes.Get(nodeName(id))
	if row == nil {
		return domain.Node{}
	}
	return row.State
}

func (c *cluster) closed(what string, conn *nats.Conn) {
	c.Helper()
	deadline := time.After(waitTimeout)
	status := conn.StatusChanged(nats.CLOSED)
	for !conn.IsClosed() {
		select {
		case <-status:
		case <-deadline:
			require.FailNow(c, "the connection stays open", what)
		}
	}
}

func newKey(t testing.TB) nkeys.KeyPair {
	key, err := nkeys.CreateUser()
	require.NoError(t, err)
	return key
}

func public(t testing.TB, key nkeys.KeyPair) string {
	text, err := key.PublicKey()
	require.NoError(t, err)
	return text
}

// TestTokenDoesNotReplaceAnEnrolledNode checks that a token cannot enroll another agent as an
// enrolled node, and that an enrolled agent needs no token.
func TestTokenDoesNotReplaceAnEnrolledNode(t *testing.T) {
	c := startWithTokens(t, map[string]coordinator.JoinToken{"any": {ID: "t1"}, "for n1": {ID: "t2", Node: "n1"},
		"for n2": {ID: "t3", Node: "n2"}})
	mine, theirs := newKey(t), newKey(t)

	_, err := c.join("n1", "", mine)
	require.ErrorIs(t, err, nats.ErrAuthorization, "no token and not enrolled")
	_, err = c.join("n1", "for n2", mine)
	require.ErrorIs(t, err, nats.ErrAuthorization, "a token of another node")
	_, err = nats.Connect(c.server.URL(), nats.UserInfo("n1", "any"))
	require.ErrorIs(t, err, nats.ErrAuthorization, "a token and no key")
	require.Empty(t, c.node("n1").State)

	conn, err := c.join("n1", "any", mine)
	require.NoError(t, err)
	require.Equal(t, domain.NodeJoining, c.node("n1").State)
	require.Equal(t, public(t, mine), c.node("n1").Access.PublicKey)
	require.Equal(t, "t1", c.node("n1").Access.JoinToken)
	require.NoError(t, c.send(conn, protocol.HeartbeatSubject("n1"), heartbeatOf("a", 1), &protocol.Assignments{}))
	require.Equal(t, domain.NodeReady, c.node("n1").State)

	for _, token := range []string{"any", "for n1", ""} {
		_, err := c.join("n1", token, theirs)
		require.ErrorIs(t, err, nats.ErrAuthorization, "another's key with token %q", token)
	}
	require.NoError(t, c.send(conn, protocol.HeartbeatSubject("n1"), heartbeatOf("a", 2), &protocol.Assignments{}),
		"the connected agent stays connected")
	stranger := public(t, mine)
	_, err = c.join("n1", "any", theirs, nats.Nkey(stranger, theirs.Sign))
	require.ErrorIs(t, err, nats.ErrAuthorization, "the name of a key that it does not have")

	conn.Close()
	_, err = c.join("n1", "", mine)
	require.NoError(t, err, "the key alone")
}

// TestNodeHasOneSession checks that a second connection with a node's key replaces the first.
func TestNodeHasOneSession(t *testing.T) {
	c := startWithTokens(t, map[string]coordinator.JoinToken{"any": {ID: "t1"}})
	key := newKey(t)
	first, err := c.join("n1", "any", key)
	require.NoError(t, err)
	other, err := c.join("n2", "any", newKey(t))
	require.NoError(t, err)
	second, err := c.join("n1", "", key)
	require.NoError(t, err)
	c.closed("the first", first)
	require.NoError(t, second.Flush())
	require.NoError(t, other.Flush())
	sessions, err := c.server.NodeSessions(t.Context())
	require.NoError(t, err)
	require.Len(t, sessions, 2)
}

// TestRevokedNode checks that a revoked node is disconnected immediately, that its key and its
// token authenticate no node, and that another token can enroll a node with its name.
func TestRevokedNode(t *testing.T) {
	c := startWithTokens(t, map[string]coordinator.JoinToken{"any": {ID: "t1"}, "next": {ID: "t2"},
		"old": {ID: domain.LegacyJoinToken}})
	key := newKey(t)
	conn, err := c.join("n1", "any", key)
	require.NoError(t, err)
	require.NoError(t, c.send(conn, protocol.HeartbeatSubject("n1"), heartbeatOf("a", 1), &protocol.Assignments{}))
	c.createInputs()
	c.startJob("n1")
	c.do(domain.Intend(domain.Nodes, nodeName("n1"), domain.RevokeNode{Reason: "stolen"}))
	c.closed("of the revoked node", conn)
	require.Empty(t, c.node("n1").Allocations)

	for _, token := range []string{"", "any", "old"} {
		_, err := c.join("n1", token, key)
		require.ErrorIs(t, err, nats.ErrAuthorization, "token %q", token)
	}
	_, err = c.join("n9", "any", newKey(t))
	require.ErrorIs(t, err, nats.ErrAuthorization, "the token of a revoked node, under another name")

	again, err := c.join("n1", "next", newKey(t))
	require.NoError(t, err)
	require.NoError(t, c.send(again, protocol.HeartbeatSubject("n1"), heartbeatOf("b", 1), &protocol.Assignments{}))
	require.Equal(t, domain.NodeReady, c.node("n1").State)
}

// TestMessagesOfARevokedNodeAreRefused checks that messages of a revoked node are refused even if
// its connection cannot be closed.
func TestMessagesOfARevokedNodeAreRefused(t *testing.T) {
	c := start(t)
	conn := c.connectNode("n1")
	require.NoError(t, c.send(conn, protocol.HeartbeatSubject("n1"), heartbeatOf("a", 1), &protocol.Assignments{}))
	c.do(domain.Intend(domain.Nodes, nodeName("n1"), domain.RevokeNode{Reason: "stolen"}))
	for _, subject := range []string{protocol.HeartbeatSubject("n1"), protocol.ReportSubject("n1"),
		protocol.SignSubject("n1")} {
		err := c.send(conn, subject, heartbeatOf("a", 2), &protocol.Assignments{})
		require.Equal(t, domain.PermissionDenied, domain.CodeOf(err), subject)
	}
}

// A silentLog is a log that has lost its quorum: it does not respond.
type silentLog struct{ eventlog.Log }

func (silentLog) Last(ctx context.Context) (eventlog.Checkpoint, error) {
	<-ctx.Done()
	return eventlog.Checkpoint{}, ctx.Err()
}

// TestAgentsReconnectWithoutQuorum checks that an enrolled agent is admitted while the log does not
// respond, well before the NATS server closes its connection, and that no other agent is.
func TestAgentsReconnectWithoutQuorum(t *testing.T) {
	c := startWithTokens(t, map[string]coordinator.JoinToken{"any": {ID: "t1"}})
	key := newKey(t)
	_, err := c.join("n1", "any", key)
	require.NoError(t, err)
	silent := *c.admission.Load()
	silent.Log, silent.Sessions = silentLog{c.log}, nil
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second) // as long as natsserver waits for an authorization
	defer cancel()
	login := natsserver.NodeLogin{Node: "n1", PublicKey: public(t, key)}
	require.NoError(t, silent.Admit(ctx, login))
	require.NoError(t, ctx.Err())
	login.PublicKey = public(t, newKey(t))
	require.Error(t, silent.Admit(ctx, login), "another key")
	login = natsserver.NodeLogin{Node: "n2", PublicKey: public(t, key), Token: "any"}
	require.Error(t, silent.Admit(ctx, login), "a node that must enroll")
	c.do(domain.Intend(domain.Nodes, nodeName("n1"), domain.RevokeNode{}))
	login = natsserver.NodeLogin{Node: "n1", PublicKey: public(t, key)}
	require.Error(t, silent.Admit(ctx, login), "a node whose revocation the world has")
}

// TestTwoAdmissions checks that an Admission reads the log to its end before it rejects an agent,
// because the Admission of another control plane may have enrolled the node.
func TestTwoAdmissions(t *testing.T) {
	c := startWithTokens(t, map[string]coordinator.JoinToken{"any": {ID: "t1"}})
	key := newKey(t)
	_, err := c.join("n1", "any", key)
	require.NoError(t, err)
	second := *c.admission.Load()
	second.World, second.Sessions = projections.NewWorld(), nil
	login := natsserver.NodeLogin{Node: "n1", PublicKey: public(t, key)}
	world := second.World
	c.background(func(ctx context.Context) error { return world.Run(ctx, c.log) })
	require.NoError(t, second.Admit(t.Context(), login))
	c.do(domain.Intend(domain.Nodes, nodeName("n1"), domain.RevokeNode{}))
	require.Error(t, second.Admit(t.Context(), login))
}
