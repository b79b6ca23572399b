package eventlog

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/domain"
)

// NewJetStream is the log on a connection whose stream exists, or will.
func NewJetStream(nc *nats.Conn) (*JetStream, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	return &JetStream{nc: nc, js: js, ackWait: defaultAckWait}, nil
}

// OpenReader opens the log for reading only: the mirror that readers see, with
// the same events at the same positions. Append fails on it. It is Unavailable
// when the server has no such stream, or does not answer.
func OpenReader(ctx context.Context, nc *nats.Conn) (*JetStream, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	if _, err := js.Stream(ctx, Stream); err != nil {
		return nil, domain.Errorf(domain.Unavailable, "the stream %s cannot be read at %s: %v", Stream, nc.ConnectedUrlRedacted(), err)
	}
	return &JetStream{nc: nc, js: js, ackWait: defaultAckWait, filtered: true}, nil
}
