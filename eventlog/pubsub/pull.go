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

// A puller asks a pull consumer for messages, a few at a time. It loses none
// when it ends: what the server has sent by then can be given back.
//
// nats.go's own iterator, asking for one message at a time, now and then
// forgets to ask for the next and hangs until a heartbeat is missed.
type puller struct {
	nc      *nats.Conn
	sub     *nats.Subscription
	subject string
	request []byte
	batch   int
	due     int                         // messages that the server still owes us
	mend    func(context.Context) error // makes the consumer again
}

const pullExpires = 30 * time.Second

func newPuller(nc *nats.Conn, stream, consumer string, batch int, mend func(context.Context) error) (*puller, error) {
	request, err := json.Marshal(map[string]any{"batch": batch, "expires": pullExpires.Nanoseconds()})
	if err != nil {
		return nil, err
	}
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	subject := "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + consumer
	return &puller{nc: nc, sub: sub, subject: subject, request: request, batch: batch, mend: mend}, nil
}

// next waits for a message. Its error is final: ctx is done, or the connection
// is closed.
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
		case errors.Is(err, context.DeadlineExceeded): // the question or its answer was lost
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
		case "404", "408": // nothing there, so far
			p.due = 0
		case "100":
		default: // the consumer or its leader is gone
			p.due = 0
			p.repair(ctx)
		}
	}
}

func (p *puller) repair(ctx context.Context) {
	if eventlog.Sleep(ctx, 100*time.Millisecond) {
		once, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_ = p.mend(once) // when it fails, the next question says so again
	}
}

// end stops asking and gives back what has arrived.
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
