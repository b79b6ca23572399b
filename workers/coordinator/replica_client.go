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

// ReplicaClient is the gateway's way to the replicas on the nodes.
type ReplicaClient struct {
	// Conn leads into the agents' account.
	Conn *nats.Conn
	// Silence is how long a node may say nothing at all before it counts as
	// dead; 0 is 10 s. A live one speaks every 2 s, also while it computes.
	Timeout time.Duration
}

// Complete has one replica generate one continuation and hands it to emit
// piece by piece, in order and without gaps; the last piece carries Finish. It
// returns when all is emitted, or when emit fails or ctx is done: the replica
// then stops within one step. Unavailable means that the replica cannot be
// reached, is gone, or fell silent: when nothing was emitted yet, another
// replica may be asked. Faults of the engine come back as they are.
func (r ReplicaClient) Complete(ctx context.Context, deployment domain.Name, replica domain.Replica, req engines.CompletionRequest,
	emit func(engines.Chunk) error) (engines.Usage, error) {
	return ask[engines.Usage](ctx, r, protocol.CompleteSubject, deployment, replica, req, emit)
}

// Transcribe has one replica listen to one recording, as Complete has it
// answer: what it hears comes in the order of time. A recording may be listened
// to again from its beginning by another replica, which may cut it otherwise.
func (r ReplicaClient) Transcribe(ctx context.Context, deployment domain.Name, replica domain.Replica, req engines.Transcription,
	emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
	return ask[engines.Transcript](ctx, r, protocol.TranscribeSubject, deployment, replica, req, emit)
}

// ask asks a replica, and reads the stream that answers.
func ask[Total, Request, Piece any](ctx context.Context, r ReplicaClient, subject func(node string) string, deployment domain.Name, replica domain.Replica,
	req Request, emit func(Piece) error) (Total, error) {
	var none Total
	node := replica.Node.ID()
	id, err := uuid.NewV7()
	if err != nil {
		return none, err
	}
	question := protocol.StreamRequest[Request]{Version: protocol.Version, ID: id.String(), Deployment: deployment, Replica: replica.ID, Request: req}
	data, err := protocol.Marshal(question)
	if err != nil {
		return none, requestTooLarge(err)
	}
	// More parts than the window are never on their way, so none is dropped.
	parts := make(chan *nats.Msg, protocol.Window+1)
	subscription, err := r.Conn.ChanSubscribe(protocol.StreamSubject(node, question.ID), parts)
	if err != nil {
		return none, unreachable(err)
	}
	defer func() { _ = subscription.Unsubscribe() }() // fails only when the connection is gone, and it with it
	if err := r.Conn.PublishRequest(subject(node), subscription.Subject, data); err != nil {
		return none, requestTooLarge(unreachable(err))
	}
	reader := &reader[Piece, Total]{conn: r.Conn, node: node, id: question.ID, silence: cmp.Or(r.Timeout, protocol.StreamTimeout), parts: parts, emit: emit}
	total, done, err := reader.read(ctx)
	if !done {
		reader.say(true)
	}
	return total, err
}

// A reader receives one stream.
type reader[Piece, Total any] struct {
	conn     *nats.Conn
	node, id string
	silence  time.Duration
	parts    <-chan *nats.Msg
	emit     func(Piece) error
	emitted  atomic.Uint64 // parts that are emitted
}

// read emits the parts as they come. done tells that the node has ended the
// stream by itself.
func (r *reader[Piece, Total]) read(ctx context.Context) (total Total, done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go r.beat(ctx) // emit may take long, and the node wants to know that somebody reads
	silent := time.NewTimer(r.silence)
	defer silent.Stop()
	for {
		var m *nats.Msg
		select {
		case m = <-r.parts:
		case <-silent.C:
			return total, false, unavailable("node %s fell silent in the middle of an answer", r.node)
		case <-ctx.Done():
			return total, false, ctx.Err()
		}
		if m.Header.Get("Status") == "503" {
			return total, true, unavailable("no agent answers on node %s", r.node)
		}
		var part protocol.StreamMessage[Piece, Total]
		if err := protocol.Unmarshal(m.Data, &part); err != nil {
			return total, false, err
		}
		if want := r.emitted.Load() + 1; part.Seq != want {
			return total, false, unavailable("a part of the answer was lost on its way: part %d came instead of %d", part.Seq, want)
		}
		for _, piece := range part.Chunks {
			if err := r.emit(piece); err != nil {
				return total, part.Done, err
			}
		}
		if part.Total != nil {
			total = *part.Total
		}
		if part.Done {
			return total, true, part.Error.Err()
		}
		if r.emitted.Add(1)%(protocol.Window/2) == 0 {
			r.say(false)
		}
		silent.Reset(r.silence)
	}
}

// beat says that somebody reads, until ctx is done.
func (r *reader[Piece, Total]) beat(ctx context.Context) {
	pulse := time.NewTicker(protocol.KeepAlive)
	defer pulse.Stop()
	for {
		select {
		case <-pulse.C:
			r.say(false)
		case <-ctx.Done():
			return
		}
	}
}

// say tells the node what has arrived, or that no more is wanted.
func (r *reader[Piece, Total]) say(stop bool) {
	data, err := protocol.Marshal(protocol.StreamAck{Version: protocol.Version, ID: r.id, Seq: r.emitted.Load(), Stop: stop})
	if err == nil {
		_ = r.conn.Publish(protocol.AckSubject(r.node), data) // unheard, the node gives up by itself
	}
}

func unreachable(err error) error {
	if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrReconnectBufExceeded) {
		return unavailable("the nodes cannot be reached now: try again")
	}
	return err
}

// requestTooLarge turns the fault of a message that is too large into that of
// the request in it: its caller's, so that no other replica is asked.
func requestTooLarge(err error) error {
	var fault *domain.Error
	if !errors.Is(err, nats.ErrMaxPayload) && !(errors.As(err, &fault) && fault.Reason == protocol.TooLarge) {
		return err
	}
	f := domain.Errorf(domain.OutOfRange, "the request takes more than the %d bytes that go to a replica at once: shorten its prompt, messages, tools or schema", protocol.MaxMessage)
	f.Reason = engines.RequestTooLarge
	return f
}

func unavailable(format string, args ...any) error {
	f := domain.Errorf(domain.Unavailable, format, args...)
	f.Reason = "REPLICA_UNREACHABLE"
	return f
}
