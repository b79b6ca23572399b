package streamcopy

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	pendingMessages = 4096 // published messages that are not acknowledged
	publishTimeout  = 30 * time.Second
)

// A Publisher publishes messages in order. It reports the first error at the next call.
type Publisher struct {
	js     jetstream.JetStream
	failed chan error
}

// NewPublisher returns a publisher over a connection.
func NewPublisher(nc *nats.Conn) (*Publisher, error) {
	p := &Publisher{failed: make(chan error, 1)}
	fail := func(_ jetstream.JetStream, m *nats.Msg, err error) {
		select {
		case p.failed <- fmt.Errorf("publish to %s: %w", m.Subject, err):
		default:
		}
	}
	var err error
	p.js, err = jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(pendingMessages),
		jetstream.WithPublishAsyncTimeout(publishTimeout), jetstream.WithPublishAsyncErrHandler(fail))
	return p, err
}

// PublishAt publishes a message on the condition that the stream ends at the position before it.
func (p *Publisher) PublishAt(m Message) error {
	m.Header[jetstream.ExpectedLastSeqHeader] = []string{strconv.FormatUint(m.Position-1, 10)}
	return p.Publish(m)
}

// Publish publishes a message. Its position in the stream may differ from m.Position.
func (p *Publisher) Publish(m Message) error {
	select {
	case err := <-p.failed:
		return err
	default:
	}
	_, err := p.js.PublishMsgAsync(&nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data},
		jetstream.WithStallWait(publishTimeout))
	return err
}

// Wait returns when all messages are acknowledged.
func (p *Publisher) Wait(ctx context.Context) error {
	select {
	case <-p.js.PublishAsyncComplete():
	case <-ctx.Done():
		return ctx.Err()
	case err := <-p.failed:
		return err
	}
	select {
	case err := <-p.failed:
		return err
	default:
		return nil
	}
}
