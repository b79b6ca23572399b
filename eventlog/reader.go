package eventlog

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/domain"
)

// NewJetStream returns the log on a connection. The stream EVENTS need not exist yet.
func NewJetStream(nc *nats.Conn) (*JetStream, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	return &JetStream{nc: nc, js: js, ackWait: defaultAckWait}, nil
}

// OpenReader opens the mirror of the log for readers, which has the events of the log, or those of
// one account, at the same positions. Append of the returned log fails. The error is Unavailable
// when the server has no stream EVENTS, or does not respond.
func OpenReader(ctx context.Context, nc *nats.Conn) (*JetStream, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	if _, err := js.Stream(ctx, Stream); err != nil {
		return nil, domain.Errorf(domain.Unavailable, "cannot read stream %s at %s: %v", Stream,
			nc.ConnectedUrlRedacted(), err)
	}
	return &JetStream{nc: nc, js: js, ackWait: defaultAckWait, filtered: true}, nil
}
