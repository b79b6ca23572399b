package agent

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

const (
	maxStreams = 1024    // maximum number of concurrent responses of a node
	maxUnsent  = 1 << 16 // maximum number of chunks of a response that wait for a slow reader
)

// A service is one kind of request with a streamed response that replicas serve: completions,
// embeddings or transcriptions.
type service[Request, Chunk, Total any] struct {
	do     func(*replica, context.Context, Request, func(Chunk) error) (Total, error)
	sizeOf func(Chunk) int // returns an upper bound of a chunk's encoded size in bytes
}

var (
	completions = service[engines.CompletionRequest, engines.Chunk, engines.Usage]{(*replica).complete,
		protocol.SizeOfChunk}
	embeddings = service[engines.EmbeddingRequest, engines.Embedding, engines.Usage]{(*replica).embed,
		protocol.SizeOfEmbedding}
	transcriptions = service[engines.TranscriptionRequest, engines.TranscriptEvent, engines.Transcript]{
		(*replica).transcribe,
		protocol.SizeOfTranscriptEvent}
)

// A response is a stream with chunks of any type.
type response interface {
	ack(protocol.StreamAck)
	ended() <-chan struct{} // closed when the last message was sent or the reader has disconnected
}

// A stream sends one response to the gateway that requested it (the reader). The engine does not
// wait for a slow reader, because all requests share the steps of the engine.
type stream[Request, Chunk, Total any] struct {
	service[Request, Chunk, Total]
	agent  *Agent
	id     string
	cancel context.CancelCauseFunc
	wake   chan struct{}
	done   chan struct{}

	mu     sync.Mutex
	chunks []Chunk // chunks of the response that were not sent to the reader yet
	// last message of the response; nil while the engine computes, and again after it was sent
	last         *protocol.StreamMessage[Chunk, Total]
	disconnected bool      // the reader has disconnected
	seq          uint64    // sequence number of the newest sent message
	acked        uint64    // sequence number of the newest acknowledged message
	seen         time.Time // when the last acknowledgement arrived
}

var errReaderGone = errors.New("the gateway that requested the response has disconnected")

// start begins to serve the request in the message m.
func (v service[Request, Chunk, Total]) start(a *Agent, life context.Context, m *nats.Msg) {
	var request protocol.StreamRequest[Request]
	if err := protocol.Unmarshal(m.Data, &request); err != nil {
		a.refuse(m.Reply, err)
		return
	}
	ctx, cancel := context.WithCancelCause(life)
	s := &stream[Request, Chunk, Total]{service: v, agent: a, id: request.ID, cancel: cancel,
		wake: make(chan struct{}, 1), done: make(chan struct{}), seen: time.Now()}
	a.mu.Lock()
	r := a.replicas[domain.ReplicaAllocationID(request.Deployment, request.Replica)]
	var err error
	switch {
	case a.leaving || r == nil:
		err = errReplicaGone
	case len(a.streams) >= maxStreams:
		err = domain.Errorf(domain.ResourceExhausted,
			"the node already serves %d requests: try again later, or raise maxReplicaCount", maxStreams)
	case request.ID == "" || a.streams[request.ID] != nil:
		err = domain.Errorf(domain.InvalidArgument, "the ID of the request is missing, invalid or already in use on this "+
			"node")
	default:
		a.streams[request.ID] = s
		a.work.Go(func() { s.serve(engines.WithTrace(ctx, request.Trace), r, request.Request) })
		a.work.Go(s.send)
	}
	a.mu.Unlock()
	if err != nil {
		cancel(nil)
		a.refuse(m.Reply, err)
	}
}

// refuse replies with an error to a request that is not served.
func (a *Agent) refuse(reply string, err error) {
	if data, err := protocol.Marshal(protocol.StreamMessage[struct{}, struct{}]{Version: protocol.Version, Seq: 1,
		Done: true, Error: protocol.ErrorOf(err)}); err == nil && reply != "" {
		_ = a.conn.Publish(reply, data) // if the message is lost, the reader times out
	}
}

// errStreamUnknown tells the reader of a stream that this process has not started the stream. The
// reader of a stream that has ended ignores it, because it has already received the last message.
var errStreamUnknown = &domain.Error{Code: domain.Unavailable, Reason: protocol.StreamUnknown,
	Message: "the node has no response with this ID: the agent was restarted"}

// handleAck handles a reader's acknowledgement of a stream's messages.
func (a *Agent) handleAck(m *nats.Msg) {
	var ack protocol.StreamAck
	if protocol.Unmarshal(m.Data, &ack) != nil {
		return
	}
	a.mu.Lock()
	s := a.streams[ack.ID]
	a.mu.Unlock()
	switch {
	case s != nil:
		s.ack(ack)
	case m.Reply != "" && streamID(ack.ID): // only a keep-alive requests a reply
		a.refuse(protocol.StreamSubject(a.options.Node, ack.ID), errStreamUnknown)
	}
}

// streamID reports whether id is a valid stream ID: a single token of a NATS subject, without
// wildcards.
func streamID(id string) bool { return id != "" && !strings.ContainsAny(id, ".*> \t\r\n") }

func (s *stream[Request, Chunk, Total]) ack(ack protocol.StreamAck) {
	if ack.Stop {
		s.cancel(errReaderGone)
	}
	s.mu.Lock()
	s.acked, s.seen = max(s.acked, ack.Seq), time.Now()
	s.mu.Unlock()
	s.signal()
}

func (s *stream[Request, Chunk, Total]) ended() <-chan struct{} { return s.done }

func (s *stream[Request, Chunk, Total]) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *stream[Request, Chunk, Total]) serve(ctx context.Context, r *replica, request Request) {
	total, err := s.serveInSpan(ctx, r, request, func(chunk Chunk) error {
		if r.lostDevice() {
			return errReplicaGone // the failed device may have computed the chunk
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.chunks) >= maxUnsent {
			return domain.Errorf(domain.ResourceExhausted, "the client reads too slowly: %d chunks of its response wait to "+
				"be sent, so the response was stopped",
				maxUnsent)
		}
		s.chunks = append(s.chunks, chunk)
		s.signal()
		return nil
	})
	s.mu.Lock()
	s.disconnected = errors.Is(context.Cause(ctx), errReaderGone)
	s.last = &protocol.StreamMessage[Chunk, Total]{Total: &total, Error: protocol.ErrorOf(err), Done: true}
	s.mu.Unlock()
	s.signal()
	<-s.done
	s.agent.mu.Lock()
	delete(s.agent.streams, s.id)
	s.agent.mu.Unlock()
}

// send sends messages as the reader acknowledges earlier ones, until the stream has ended.
func (s *stream[Request, Chunk, Total]) send() {
	defer close(s.done)
	defer s.cancel(errReaderGone)
	ticker := time.NewTicker(protocol.KeepAlive)
	defer ticker.Stop()
	for keepAlive := false; ; {
		message, disconnected := s.next(keepAlive)
		if disconnected {
			return
		}
		if message != nil {
			if !s.publish(message) || message.Done {
				return
			}
			keepAlive = false
			continue
		}
		select {
		case <-s.wake:
			keepAlive = false
		case <-ticker.C:
			keepAlive = true
		}
	}
}

// next returns the message to send now; nil when there is none. With keepAlive it returns an empty
// message when no chunks wait. It returns no message while Window messages are not acknowledged.
// disconnected reports that the reader has disconnected.
func (s *stream[Request, Chunk, Total]) next(keepAlive bool) (message *protocol.StreamMessage[Chunk, Total],
	disconnected bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.disconnected || time.Since(s.seen) > protocol.StreamTimeout {
		return nil, true
	}
	if s.seq-s.acked >= protocol.Window || len(s.chunks) == 0 && s.last == nil && !keepAlive {
		return nil, false
	}
	n := protocol.FitChunks(s.chunks, s.sizeOf)
	message = &protocol.StreamMessage[Chunk, Total]{Chunks: s.chunks[:n:n]}
	s.chunks = s.chunks[n:]
	if len(s.chunks) == 0 && s.last != nil {
		message.Total, message.Error, message.Done = s.last.Total, s.last.Error, true
	}
	s.seq++
	message.Version, message.Seq = protocol.Version, s.seq
	return message, false
}

// publish sends a message and reports whether it was sent. When the message is too large, it sends
// a last message with the error instead.
func (s *stream[Request, Chunk, Total]) publish(message *protocol.StreamMessage[Chunk, Total]) bool {
	data, err := protocol.Marshal(message)
	if err != nil {
		*message = protocol.StreamMessage[Chunk, Total]{Version: message.Version, Seq: message.Seq,
			Error: protocol.ErrorOf(err), Done: true}
		data, err = protocol.Marshal(message)
	}
	if err == nil {
		err = s.agent.conn.Publish(protocol.StreamSubject(s.agent.options.Node, s.id), data)
	}
	if err != nil {
		s.agent.log.Warn("response aborted", "stream", s.id, "error", err)
	}
	return err == nil
}
