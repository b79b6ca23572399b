package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// gatewaySubject is the prefix of the subjects on which control planes send messages of their gateways
// to one another. The ID of the sender follows. Messages that are lost are not sent again.
const gatewaySubject = "gateways."

// gatewayInterval is the time between two messages of a gateway.
const gatewayInterval = 50 * time.Millisecond

// Gateways exchanges messages between the gateways of the control planes of an installation.
type Gateways struct {
	Conn *nats.Conn // connection into the NATS account CONTROL
	ID   string     // ID of this control plane
	Take func() (messages [][]byte)
	// Add is called with each message of another gateway, and the ID of its control plane.
	Add    func(sender string, message []byte) error
	Logger *slog.Logger
}

// Run sends the messages that Take returns, and passes those of other gateways to Add, until ctx is
// done.
func (g *Gateways) Run(ctx context.Context) error {
	subscription, err := g.Conn.Subscribe(gatewaySubject+"*", func(m *nats.Msg) {
		sender := strings.TrimPrefix(m.Subject, gatewaySubject)
		if sender == g.ID {
			return
		}
		if err := g.Add(sender, m.Data); err != nil {
			g.Logger.Debug("ignored a message of another gateway", "subject", m.Subject, "error", err)
		}
	})
	if err != nil {
		return fmt.Errorf("subscribe to messages of other gateways: %w", err)
	}
	defer func() { _ = subscription.Unsubscribe() }() // fails only when the connection is closed
	ticker := time.NewTicker(gatewayInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		for _, message := range g.Take() {
			if err := g.Conn.Publish(gatewaySubject+g.ID, message); err != nil {
				g.Logger.Debug("cannot send a message to other gateways: they do not know of some requests", "error", err)
			}
		}
	}
}
