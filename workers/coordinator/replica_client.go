package coordinator

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

// A ReplicaClient sends requests of the gateway to replicas on the nodes.
type ReplicaClient struct {
	Conn *nats.Conn // connection to the NATS account of the agents
	// Timeout is the time without a message after which a node counts as unreachable; 0 is 10 s. A
	// reachable node sends a message every 2 s, also while it computes.
	Timeout time.Duration
	// KeepAlive is the interval of the messages that are sent to the node during a response to
	// detect that the node is gone; 0 is 2 s.
	KeepAlive time.Duration
}

// Complete generates one completion on a replica and passes it to emit chunk by chunk, in order and
// without gaps; the last chunk carries Finish. It returns when all chunks are emitted, emit fails,
// or ctx is done. In the last two cases, the replica stops within one step of the engine. An error
// with the code Unavailable means that the replica is unreachable, was removed, or stopped
// responding; if no chunk was emitted yet, the request may be sent to another replica. Errors of
// the engine are returned unchanged.
func (r ReplicaClient) Complete(
	ctx context.Context, deployment domain.Name, replica domain.Replica, req engines.CompletionRequest,
	emit func(engines.Chunk) error,
) (engines.Usage, error) {
	return stream[engines.Usage](ctx, r, protocol.CompleteSubject, deployment, replica, req, emit)
}

// Embed computes one embedding on a replica. It returns errors as Complete does.
func (r ReplicaClient) Embed(
	ctx context.Context, deployment domain.Name, replica domain.Replica, req engines.EmbeddingRequest,
) (embedding engines.Embedding, usage engines.Usage, err error) {
	usage, err = stream[engines.Usage](ctx, r, protocol.EmbedSubject, deployment, replica, req,
		func(e engines.Embedding) error {
			embedding = e
			return nil
		})
	return embedding, usage, err
}

// Transcribe transcribes one recording on a replica and passes the events to emit in chronological
// order. It returns under the same conditions and with the same errors as Complete. A replica that
// transcribes the recording again may divide the recording into other segments.
func (r ReplicaClient) Transcribe(
	ctx context.Context, deployment domain.Name, replica domain.Replica, req engines.TranscriptionRequest,
	emit func(engines.TranscriptEvent) error,
) (engines.Transcript, error) {
	return stream[engines.Transcript](ctx, r, protocol.TranscribeSubject, deployment, replica, req, emit)
}

// stream sends a request to a replica and reads the streamed response.
func stream[Total, Request, Chunk any](
	ctx context.Context, r ReplicaClient, subject func(node string) string, deployment domain.Name,
	replica domain.Replica, req Request, emit func(Chunk) error,
) (Total, error) {
	var none Total
	node := replica.Node.ID()
	id, err := uuid.NewV7()
	if err != nil {
		return none, err
	}
	request := protocol.StreamRequest[Request]{Version: protocol.Version, ID: id.String(),
		Deployment: deployment, Replica: replica.ID, Request: req, Trace: engines.TraceOf(ctx)}
	data, err := protocol.Marshal(request)
	if err != nil {
		return none, requestTooLarge(err)
	}
	// At most protocol.Window messages are in flight, so the channel never overflows.
	messages := make(chan *nats.Msg, protocol.Window+1)
	subscription, err := r.Conn.ChanSubscribe(protocol.StreamSubject(node, request.ID), messages)
	if err != nil {
		return none, unreachable(err)
	}
	defer func() { _ = subscription.Unsubscribe() }() // fails only when the connection is closed
	if err := r.Conn.PublishRequest(subject(node), subscription.Subject, data); err != nil {
		return none, requestTooLarge(unreachable(err))
	}
	reader := &streamReader[Chunk, Total]{conn: r.Conn, node: node, id: request.ID,
		timeout: cmp.Or(r.Timeout, protocol.StreamTimeout), every: cmp.Or(r.KeepAlive, protocol.KeepAlive),
		messages: messages, gone: make(chan struct{}), emit: emit}
	total, done, err := reader.read(ctx)
	if !done {
		reader.ack(true)
	}
	return total, err
}

// A streamReader receives one streamed response.
type streamReader[Chunk, Total any] struct {
	conn     *nats.Conn
	node, id string
	timeout  time.Duration
	every    time.Duration // interval of keepAlive
	messages <-chan *nats.Msg
	gone     chan struct{} // closed when keepAlive has noticed that the node is gone
	emit     func(Chunk) error
	emitted  atomic.Uint64 // number of messages whose chunks were passed to emit
}

// read emits the chunks as they arrive. done reports whether the node has ended the stream.
func (r *streamReader[Chunk, Total]) read(ctx context.Context) (total Total, done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go r.keepAlive(ctx) // because a call of emit may take long
	expired := time.NewTimer(r.timeout)
	defer expired.Stop()
	for {
		var m *nats.Msg
		select {
		case m = <-r.messages:
		case <-r.gone:
			select {
			case m = <-r.messages: // arrived before the node was gone
			default:
				return total, false, unavailable(engines.ReplicaLost, "node %s was lost during the request", r.node)
			}
		case <-expired.C:
			return total, false, unavailable(engines.ReplicaLost, "node %s stopped responding during the request", r.node)
		case <-ctx.Done():
			return total, false, ctx.Err()
		}
		if m.Header.Get("Status") == "503" {
			return total, true, unavailable(engines.ReplicaUnreachable, "no agent responds on node %s", r.node)
		}
		var message protocol.StreamMessage[Chunk, Total]
		if err := protocol.Unmarshal(m.Data, &message); err != nil {
			return total, false, err
		}
		if message.Error != nil && message.Error.Reason == protocol.StreamUnknown {
			return total, true, unavailable(engines.ReplicaLost, "the agent on node %s was restarted during the request", r.node)
		}
		if want := r.emitted.Load() + 1; message.Seq != want {
			return total, false, unavailable(engines.ReplicaLost,
				"a message of the response was lost: received message %d instead of message %d", message.Seq, want)
		}
		for _, chunk := range message.Chunks {
			if err := r.emit(chunk); err != nil {
				return total, message.Done, err
			}
		}
		if message.Total != nil {
			total = *message.Total
		}
		if message.Done {
			return total, true, message.Error.Err()
		}
		if r.emitted.Add(1)%(protocol.Window/2) == 0 {
			r.ack(false)
		}
		expired.Reset(r.timeout)
	}
}

// goneAfter is longer than an agent needs to reconnect to NATS after an interruption.
const (
	goneAfter  = 3 * time.Second // time without a subscriber on the node after which the node is gone
	retryPause = 100 * time.Millisecond
)

// keepAlive sends acknowledgements until ctx is done, so that the node knows that the reader is
// connected. It closes gone when the node has had no subscription to them for goneAfter, because
// its agent has ended or is disconnected.
func (r *streamReader[Chunk, Total]) keepAlive(ctx context.Context) {
	ticker := time.NewTicker(r.every)
	defer ticker.Stop()
	var since time.Time // of the first acknowledgement without a subscriber
	for {
		wait := ticker.C
		if !since.IsZero() {
			wait = time.After(retryPause)
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return
		}
		sent := time.Now()
		switch {
		case r.delivered(ctx):
			since = time.Time{}
		case since.IsZero():
			since = sent
		case sent.Sub(since) > goneAfter:
			close(r.gone)
			return
		}
	}
}

// delivered sends an acknowledgement. Agents do not reply to it, so a timeout counts as delivered:
// delivered returns false only if the NATS server replies that no client has a subscription to the
// subject.
func (r *streamReader[Chunk, Total]) delivered(ctx context.Context) bool {
	data, err := r.encodeAck(false)
	if err != nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, r.every/2)
	defer cancel()
	_, err = r.conn.RequestWithContext(ctx, protocol.AckSubject(r.node), data)
	return !errors.Is(err, nats.ErrNoResponders)
}

// ack acknowledges the emitted messages. If stop is set, the acknowledgement also ends the stream.
func (r *streamReader[Chunk, Total]) ack(stop bool) {
	if data, err := r.encodeAck(stop); err == nil {
		_ = r.conn.Publish(protocol.AckSubject(r.node), data) // if the message is lost, the node times out
	}
}

func (r *streamReader[Chunk, Total]) encodeAck(stop bool) ([]byte, error) {
	return protocol.Marshal(protocol.StreamAck{Version: protocol.Version, ID: r.id, Seq: r.emitted.Load(), Stop: stop})
}

func unreachable(err error) error {
	if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrReconnectBufExceeded) {
		return unavailable(engines.ReplicaUnreachable, "the connection to the nodes is lost: try again")
	}
	return err
}

// requestTooLarge replaces the error for a message that is too large with an error that says how to
// shorten the request, and returns other errors unchanged. The code of the new error prevents the
// gateway from sending the request to another replica.
func requestTooLarge(err error) error {
	var failure *domain.Error
	tooLarge := errors.Is(err, nats.ErrMaxPayload) || errors.As(err, &failure) && failure.Reason == protocol.TooLarge
	if !tooLarge {
		return err
	}
	e := domain.Errorf(domain.OutOfRange, "the request exceeds the limit of %d bytes that can be sent to a replica: "+
		"shorten its prompt, messages, input, tools or schema", protocol.MaxMessage)
	e.Reason = engines.RequestTooLarge
	return e
}

func unavailable(reason, format string, args ...any) error {
	e := domain.Errorf(domain.Unavailable, format, args...)
	e.Reason = reason
	return e
}
