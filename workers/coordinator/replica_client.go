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
	Conn *nats.Conn // connection into the NATS account AGENTS
	// Timeout is the time without a message after which a node counts as unreachable; 0 means 10 s.
	// During a response, a node sends a message at least every 2 s, even while it computes.
	Timeout time.Duration
	// KeepAlive is the interval of the messages to the node during a response, by which the client
	// notices that the node is gone; 0 means 2 s.
	KeepAlive time.Duration
}

// Complete generates one completion on a replica and passes its chunks to emit, in order and
// without gaps. The last chunk has Finish. It returns when all chunks were emitted, emit returns an
// error, or ctx is done. In the last two cases the replica stops within one step of the engine.
//
// An error with the code Unavailable means that the replica was unreachable or removed, or that it
// stopped responding. When no chunk was emitted before, the request may be sent to another replica.
// Errors of the engine are returned unchanged.
func (r ReplicaClient) Complete(
	ctx context.Context, deployment domain.Name, replica domain.Replica, req engines.CompletionRequest,
	emit func(engines.Chunk) error,
) (engines.Usage, error) {
	return stream[engines.Usage](ctx, r, protocol.CompleteSubject, deployment, replica, req, emit)
}

// Embed computes one embedding on a replica. Its errors are those of Complete.
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

// Transcribe transcribes one audio file on a replica and passes the events to emit, in the order of
// the audio. It ends as Complete does, with the same errors. When a replica transcribes a file
// again, it may divide the file into other segments.
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
	// at most protocol.Window messages are not acknowledged, so the channel is never full
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
		messages: messages, nodeLost: make(chan struct{}), emit: emit}
	total, done, err := reader.read(ctx)
	if !done {
		reader.ack(true)
	}
	return total, err
}

// A streamReader receives the streamed response to one request.
type streamReader[Chunk, Total any] struct {
	conn     *nats.Conn
	node, id string
	timeout  time.Duration
	every    time.Duration // interval of the keep-alive messages to the node
	messages <-chan *nats.Msg
	nodeLost chan struct{} // closed when keepAlive notices that the node is gone
	emit     func(Chunk) error
	emitted  atomic.Uint64 // number of messages whose chunks were passed to emit
}

// read passes the chunks to emit as they arrive. done reports whether the node has ended the
// response.
func (r *streamReader[Chunk, Total]) read(ctx context.Context) (total Total, done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go r.keepAlive(ctx) // in a goroutine, because emit can block
	expired := time.NewTimer(r.timeout)
	defer expired.Stop()
	for {
		var m *nats.Msg
		select {
		case m = <-r.messages:
		case <-r.nodeLost:
			select {
			case m = <-r.messages: // a message that arrived before the node was gone
			default:
				return total, false, unavailable(engines.ReplicaLost, "the node of the replica was lost during the request")
			}
		case <-expired.C:
			return total, false, unavailable(engines.ReplicaLost,
				"the node of the replica stopped responding during the request")
		case <-ctx.Done():
			return total, false, ctx.Err()
		}
		if m.Header.Get("Status") == "503" {
			return total, true, unavailable(engines.ReplicaUnreachable, "no agent responds on the node of the replica")
		}
		var message protocol.StreamMessage[Chunk, Total]
		if err := protocol.Unmarshal(m.Data, &message); err != nil {
			return total, false, err
		}
		if message.Error != nil && message.Error.Reason == protocol.StreamUnknown {
			return total, true, unavailable(engines.ReplicaLost, "the agent of the replica was restarted during the request")
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

// lostAfter is longer than an agent needs to reconnect to NATS.
const (
	lostAfter  = 3 * time.Second // how long a node may be disconnected until it counts as gone
	retryPause = 100 * time.Millisecond
)

// keepAlive sends acknowledgements until ctx is done. They also tell the node that the reader is
// connected. When the node has had no subscription to acknowledgements for lostAfter, its agent has
// ended or is disconnected, and keepAlive closes nodeLost.
func (r *streamReader[Chunk, Total]) keepAlive(ctx context.Context) {
	ticker := time.NewTicker(r.every)
	defer ticker.Stop()
	var since time.Time // when the subject first had no subscriber; zero while it has one
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
		case sent.Sub(since) > lostAfter:
			close(r.nodeLost)
			return
		}
	}
}

// delivered sends an acknowledgement and reports whether the node has subscribed to
// acknowledgements. Agents do not reply, so a timeout counts as delivered. It is false only when
// the NATS server replies that the subject has no subscriber.
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

// ack acknowledges the emitted messages. With stop it also tells the node to end the response.
func (r *streamReader[Chunk, Total]) ack(stop bool) {
	if data, err := r.encodeAck(stop); err == nil {
		_ = r.conn.Publish(protocol.AckSubject(r.node), data) // if the acknowledgement is lost, the node times out
	}
}

func (r *streamReader[Chunk, Total]) encodeAck(stop bool) ([]byte, error) {
	return protocol.Marshal(protocol.StreamAck{Version: protocol.Version, ID: r.id, Seq: r.emitted.Load(), Stop: stop})
}

func unreachable(err error) error {
	if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrReconnectBufExceeded) {
		return unavailable(engines.ReplicaUnreachable, "the control plane has lost its connection to the nodes: try again")
	}
	return err
}

// requestTooLarge replaces an error for a message that is too large by an error that says how to
// shorten the request. Its code keeps the gateway from trying another replica. It returns other
// errors unchanged.
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
