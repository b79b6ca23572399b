package eventlog

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/domain"
)

// NewJetStream returns the log that a connection can access. The stream EVENTS may be created
// later.
func NewJetStream(nc *nats.Conn) (*JetStream, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	return &JetStream{nc: nc, js: js, ackWait: defaultAckWait}, nil
}

// OpenReader opens a mirror of the log for readers. The mirror has all events of the log, or those
// of one account, at the same positions. Append fails on it. The error is Unavailable when the
// connection has no stream EVENTS or the server does not respond.
func OpenReader(ctx context.Context, nc *nats.Conn) (*JetStream, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	if _, err := js.Stream(ctx, Stream); err != nil {
		return nil, domain.Errorf(domain.Unavailable, "cannot read the stream %s of the NATS server %s: %v: check the "+
			"URL and the credentials", Stream,
			nc.ConnectedUrlRedacted(), err)
	}
	return &JetStream{nc: nc, js: js, ackWait: defaultAckWait, filtered: true}, nil
}
