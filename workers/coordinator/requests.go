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
	maxConcurrent = 64               // maximum number of messages that are handled concurrently
	handleTimeout = 25 * time.Second // maximum time for handling one message
)

// A handler handles a message from the agent of a node.
type handler func(ctx context.Context, node string, m *nats.Msg)

// requests receives messages of agents and sends the replies.
type requests struct {
	recorder
	conn   *nats.Conn
	logger *slog.Logger
	slots  chan struct{} // has one element for each message that is being handled
}

// subscribe calls handle with each message on a subject, in a goroutine. The node is taken from the
// subject of the message, because NATS lets an agent publish only on the subjects of its own node.
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

// drain waits until no handler is running. The handlers' context must be done.
func (r *requests) drain() {
	for range cap(r.slots) {
		r.slots <- struct{}{}
	}
	for range cap(r.slots) {
		<-r.slots
	}
}

// decode decodes m into message and reports whether it succeeded. It replies with an error when m
// cannot be decoded or its node is not enrolled.
func (r *requests) decode(ctx context.Context, node string, m *nats.Msg, message any) bool {
	err := r.requireEnrolled(ctx, node)
	if err == nil {
		err = protocol.Unmarshal(m.Data, message)
	}
	switch {
	case err == nil:
	case isRefused(err):
		r.refuse(m, node, err)
	default: // send no reply to a temporary error: the agent sends the message again
		r.logger.Debug("cannot handle a message of an agent: the agent sends it again", "node", node, "error", err)
	}
	return err == nil
}

// requireEnrolled returns an error when a node is not enrolled, because the node may have been
// revoked while it is connected. Before it refuses a node, it lets the world catch up with the log,
// because another control plane may have just enrolled it.
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
		r.logger.Warn("cannot send a reply to an agent: the agent repeats its request", "subject", m.Subject, "error", err)
	}
}
