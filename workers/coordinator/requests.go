package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/domain"
	"anneal/workers/protocol"
)

const (
	maxConcurrent = 64               // messages handled concurrently
	handleTimeout = 25 * time.Second // timeout for handling one message
)

// A handler handles one message of a node.
type handler func(ctx context.Context, node string, m *nats.Msg)

// requests receives messages of agents and sends the replies.
type requests struct {
	recorder
	conn   *nats.Conn
	logger *slog.Logger
	slots  chan struct{} // has an element for each message that is being handled
}

// subscribe handles each message in a separate goroutine. It takes the node from the subject,
// because NATS permits an agent to publish only on the subjects of its node.
func (r *requests) subscribe(ctx context.Context, subject, queue string, handle handler) (*nats.Subscription, error) {
	return r.conn.QueueSubscribe(subject, queue, func(m *nats.Msg) {
		node := strings.Split(m.Subject, ".")[1]
		if !domain.ValidID(node) {
			return
		}
		select {
		case r.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		go func() {
			defer func() { <-r.slots }()
			handle(ctx, node, m)
		}()
	})
}

// drain waits until no message is being handled. The context of the handlers must be done.
func (r *requests) drain() {
	for range cap(r.slots) {
		r.slots <- struct{}{}
	}
	for range cap(r.slots) {
		<-r.slots
	}
}

// decode decodes m into message, and reports whether the message can be handled. It replies with an
// error to a message that it cannot decode, and to a message of a node that is not enrolled.
func (r *requests) decode(ctx context.Context, node string, m *nats.Msg, message any) bool {
	err := r.requireEnrolled(ctx, node)
	if err == nil {
		err = protocol.Unmarshal(m.Data, message)
	}
	switch {
	case err == nil:
	case isRefused(err):
		r.refuse(m, node, err)
	default: // the agent retries
		r.logger.Debug("message not handled", "node", node, "error", err)
	}
	return err == nil
}

// requireEnrolled returns an error when the node is not enrolled, because a connected node may have
// been revoked. Another control plane may have just enrolled the node, so the world catches up with
// the log before the node is refused.
func (r *requests) requireEnrolled(ctx context.Context, node string) error {
	enrolled := func() bool {
		row, ok := r.world.View().Nodes.Get(nodeName(node))
		return ok && row.State.Access.PublicKey != ""
	}
	if enrolled() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	err := r.catchUp(ctx)
	if err == nil && !enrolled() {
		err = &domain.Error{Code: domain.PermissionDenied, Reason: "NODE_NOT_ENROLLED",
			Message: "the node was revoked or deleted: join again with a new token"}
	}
	return err
}

func (r *requests) refuse(m *nats.Msg, node string, err error) {
	r.logger.Warn("agent refused", "node", node, "error", err)
	r.respond(m, protocol.ErrorReply{Version: protocol.Version, Refused: protocol.ErrorOf(err)})
}

func (r *requests) respond(m *nats.Msg, reply any) {
	data, err := protocol.Marshal(reply)
	if err == nil {
		err = m.Respond(data)
	}
	if err != nil && !errors.Is(err, nats.ErrMsgNoReply) {
		r.logger.Warn("reply not sent", "subject", m.Subject, "error", err)
	}
}
