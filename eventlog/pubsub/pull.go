package pubsub

import (
	"anneal/eventlog"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// A puller receives messages from a JetStream pull consumer, which it requests in batches. When it
// ends, it releases the messages that the server has already sent, so that they are redelivered
// immediately.
//
// It replaces the iterator of nats.go, which hangs until a heartbeat is missed if it requests one
// message at a time: it sometimes does not request the next message.
type puller struct {
	nc       *nats.Conn
	sub      *nats.Subscription
	subject  string
	request  []byte
	batch    int
	due      int                         // number of requested messages that have not arrived
	recreate func(context.Context) error // creates the consumer again after it was deleted or failed
}

const pullExpires = 30 * time.Second

func newPuller(nc *nats.Conn, stream, consumer string, batch int, recreate func(context.Context) error) (*puller,
	error) {
	request, err := json.Marshal(map[string]any{"batch": batch, "expires": pullExpires.Nanoseconds()})
	if err != nil {
		return nil, err
	}
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	subject := "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + consumer
	return &puller{nc: nc, sub: sub, subject: subject, request: request, batch: batch, recreate: recreate}, nil
}

// next returns the next message. It waits until one arrives, and returns an error only when ctx is
// done or the connection is closed.
func (p *puller) next(ctx context.Context) (*nats.Msg, error) {
	for {
		if p.due <= 0 {
			if err := p.nc.PublishRequest(p.subject, p.sub.Subject, p.request); err != nil {
				return nil, err
			}
			p.due = p.batch
		}
		once, cancel := context.WithTimeout(ctx, pullExpires+5*time.Second)
		m, err := p.sub.NextMsgWithContext(once)
		cancel()
		switch {
		case ctx.Err() != nil && err != nil:
			return nil, ctx.Err()
		case errors.Is(err, context.DeadlineExceeded): // the request or the response was lost
			p.due = 0
			continue
		case errors.Is(err, nats.ErrNoResponders):
			p.due = 0
			p.repair(ctx)
			continue
		case err != nil:
			return nil, err
		}
		switch eventlog.HeaderValue(m.Header, "Status") {
		case "":
			p.due--
			return m, nil
		case "404", "408": // no message arrived before the request expired
			p.due = 0
		case "100":
		default: // the consumer was deleted, or its leader does not respond
			p.due = 0
			p.repair(ctx)
		}
	}
}

func (p *puller) repair(ctx context.Context) {
	if eventlog.Sleep(ctx, 100*time.Millisecond) {
		once, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_ = p.recreate(once) // on an error, the next request fails too, and repair is called again
	}
}

// end ends the subscription and releases the messages that the server has already sent.
func (p *puller) end() {
	if p.sub.Drain() != nil {
		return
	}
	for {
		m, err := p.sub.NextMsg(pullExpires)
		if err != nil {
			return
		}
		if eventlog.HeaderValue(m.Header, "Status") == "" {
			_ = m.Nak()
		}
	}
}
