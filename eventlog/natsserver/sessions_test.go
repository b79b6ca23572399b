package natsserver

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// TestNodesSignTheNonce checks that VerifyNode receives a public key only when the agent signed the
// server's nonce with that key.
func TestNodesSignTheNonce(t *testing.T) {
	var mu sync.Mutex
	var logins []NodeLogin
	s := start(t, func(o *Options) {
		o.VerifyNode = func(_ context.Context, login NodeLogin) error {
			mu.Lock()
			defer mu.Unlock()
			logins = append(logins, login)
			return errors.New("nobody")
		}
	})
	output := func() []NodeLogin {
		mu.Lock()
		defer mu.Unlock()
		return append([]NodeLogin(nil), logins...)
	}
	key, other := keyOf(t, "n1"), keyOf(t, "n2")
	public, err := key.PublicKey()
	require.NoError(t, err)
	once := []nats.Option{nats.RetryOnFailedConnect(false), nats.NoReconnect()}
	refused := func(options ...nats.Option) {
		nc, err := nats.Connect(s.URL(), append(options, once...)...)
		if err == nil {
			nc.Close()
		}
		require.ErrorIs(t, err, nats.ErrAuthorization)
	}
	refused(AgentOptions("n1", "", key)...)
	require.Len(t, output(), 1)
	require.Equal(t, public, output()[0].PublicKey)

	replayed := func([]byte) ([]byte, error) { return key.Sign([]byte("a replayed nonce")) }
	refused(nats.UserInfo("n1", ""), nats.Nkey(public, replayed))
	refused(nats.UserInfo("n1", ""), nats.Nkey(public, other.Sign))
	require.Len(t, output(), 1, "an invalid signature is refused before the verification")

	refused(nats.UserInfo("n1", "token"))
	require.Len(t, output(), 2)
	require.Empty(t, output()[1].PublicKey)
}

// TestNodeSessions checks that NodeSessions lists the connections of agents with their keys, and
// that CloseSession closes them.
func TestNodeSessions(t *testing.T) {
	s := start(t)
	sessions, err := s.NodeSessions(t.Context())
	require.NoError(t, err)
	require.Empty(t, sessions)
	n1 := connect(t, s.URL(), append(agentOptions(t, "n1"), nats.NoReconnect())...)
	n2 := connect(t, "", append(agentOptions(t, "n2"), s.InProcess())...)
	sessions, err = s.NodeSessions(t.Context())
	require.NoError(t, err)
	require.Len(t, sessions, 2)
	for _, one := range sessions {
		public, err := keyOf(t, one.Node).PublicKey()
		require.NoError(t, err)
		require.Equal(t, public, one.PublicKey)
		require.WithinDuration(t, time.Now(), one.Start, startTimeout)
		if one.Node == "n1" {
			require.NoError(t, s.CloseSession(t.Context(), one))
			_ = s.CloseSession(t.Context(), one) // the connection may be closed already
		}
	}
	deadline := time.After(startTimeout)
	for closed := n1.StatusChanged(nats.CLOSED); !n1.IsClosed(); {
		select {
		case <-closed:
		case <-deadline:
			require.FailNow(t, "the connection stays open")
		}
	}
	require.NoError(t, n2.Flush())
}
