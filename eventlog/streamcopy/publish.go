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
	pendingMessages = 4096 // maximum number of messages that were published but not acknowledged
	publishTimeout  = 30 * time.Second
)

// A Publisher publishes messages to a stream in order, without waiting for each acknowledgement. If
// publishing a message fails, the next call of a method returns the error.
type Publisher struct {
	js     jetstream.JetStream
	failed chan error
}

// NewPublisher returns a Publisher on a NATS connection.
func NewPublisher(nc *nats.Conn) (*Publisher, error) {
	p := &Publisher{failed: make(chan error, 1)}
	fail := func(_ jetstream.JetStream, m *nats.Msg, err error) {
		select {
		case p.failed <- fmt.Errorf("publish a message to %s: %w", m.Subject, err):
		default:
		}
	}
	var err error
	p.js, err = jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(pendingMessages),
		jetstream.WithPublishAsyncTimeout(publishTimeout), jetstream.WithPublishAsyncErrHandler(fail))
	return p, err
}

// PublishAt publishes a message to get the position m.Position. It fails when the stream does not
// end at the position before it.
func (p *Publisher) PublishAt(m Message) error {
	m.Header[jetstream.ExpectedLastSeqHeader] = []string{strconv.FormatUint(m.Position-1, 10)}
	return p.Publish(m)
}

// Publish publishes a message at the next position of the stream, which may differ from m.Position.
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

// Wait returns when all published messages are acknowledged.
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
