package coordinator

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/eventlog/servertest"
)

// TestGatewaysExchangeMessages checks that a message reaches all gateways but its sender.
func TestGatewaysExchangeMessages(t *testing.T) {
	server := servertest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	received, ended := make(chan string, 100), make(chan error, 2)
	for _, id := range []string{"a", "b"} {
		g := &Gateways{Conn: server.Control(), ID: id, Logger: slog.New(slog.DiscardHandler),
			Take: func() [][]byte { return [][]byte{[]byte("from " + id)} }, // again and again
			Add: func(sender string, message []byte) error {
				assert.Equal(t, "from "+sender, string(message))
				received <- id + " got " + string(message)
				return nil
			}}
		go func() { ended <- g.Run(ctx) }()
	}
	seen := map[string]bool{}
	for len(seen) < 2 {
		one := <-received
		require.Contains(t, []string{"a got from b", "b got from a"}, one)
		seen[one] = true
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.ErrorIs(t, <-ended, context.Canceled)
}
