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
	maxStreams = 1024    // concurrent responses of one node
	maxUnsent  = 1 << 16 // chunks of one response that wait for a slow reader
)

// A service is one kind of streamed request that replicas serve: completions, embeddings or
// transcriptions.
type service[Request, Chunk, Total any] struct {
	do     func(*replica, context.Context, Request, func(Chunk) error) (Total, error)
	sizeOf func(Chunk) int // upper bound of the encoded size of a chunk in bytes
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

// A response is a stream of a service of any kind.
type response interface {
	ack(protocol.StreamAck)
	ended() <-chan struct{} // closed when the last message is sent or the reader has disconnected
}

// A stream sends one response. The engine continues while the reader is slow, because all requests
// share the steps of the engine and no request may block the others.
type stream[Request, Chunk, Total any] struct {
	service[Request, Chunk, Total]
	agent  *Agent
	id     string
	cancel context.CancelCauseFunc
	wake   chan struct{}
	done   chan struct{}

	mu     sync.Mutex
	chunks []Chunk                               // not yet sent
	last   *protocol.StreamMessage[Chunk, Total] // last message of the response, not yet sent
	gone   bool                                  // the reader has disconnected
	seq    uint64                                // number of the newest message sent
	acked  uint64                                // number of the newest message acknowledged
	seen   time.Time                             // time of the last acknowledgement
}

var errReaderGone = errors.New("the reader has disconnected")

// start starts to serve the request in m.
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
		err = domain.Errorf(domain.InvalidArgument, "the request needs a unique ID")
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

// refuse responds with an error to a request that is not served.
func (a *Agent) refuse(reply string, err error) {
	if data, err := protocol.Marshal(protocol.StreamMessage[struct{}, struct{}]{Version: protocol.Version, Seq: 1,
		Done: true, Error: protocol.ErrorOf(err)}); err == nil && reply != "" {
		_ = a.conn.Publish(reply, data) // if the message is lost, the reader times out
	}
}

// errStreamUnknown is sent to the reader of a stream that this run of the agent has not started. A
// reader of a stream that has ended has already received the last message, and ignores the error.
var errStreamUnknown = &domain.Error{Code: domain.Unavailable, Reason: protocol.StreamUnknown,
	Message: "the node does not have the stream"}

// handleAck handles a reader's acknowledgement of messages of a stream.
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
	case m.Reply != "" && streamID(ack.ID): // only keep-alives have a reply subject
		a.refuse(protocol.StreamSubject(a.options.Node, ack.ID), errStreamUnknown)
	}
}

// streamID reports whether id is a single token of a NATS subject, without wildcards.
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
	total, err := s.do(r, ctx, request, func(chunk Chunk) error {
		if r.lostDevice() {
			return errReplicaGone // the engine has computed the chunk on a failed device
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.chunks) >= maxUnsent {
			return domain.Errorf(domain.ResourceExhausted, "the client reads too slowly: %d chunks of its response are waiting",
				maxUnsent)
		}
		s.chunks = append(s.chunks, chunk)
		s.signal()
		return nil
	})
	s.mu.Lock()
	s.gone = errors.Is(context.Cause(ctx), errReaderGone)
	s.last = &protocol.StreamMessage[Chunk, Total]{Total: &total, Error: protocol.ErrorOf(err), Done: true}
	s.mu.Unlock()
	s.signal()
	<-s.done
	s.agent.mu.Lock()
	delete(s.agent.streams, s.id)
	s.agent.mu.Unlock()
}

// send sends messages as fast as the reader acknowledges them, until the stream has ended.
func (s *stream[Request, Chunk, Total]) send() {
	defer close(s.done)
	defer s.cancel(errReaderGone)
	ticker := time.NewTicker(protocol.KeepAlive)
	defer ticker.Stop()
	for keepAlive := false; ; {
		message, gone := s.next(keepAlive)
		if gone {
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

// next returns the message to send now; nil when there is none. If keepAlive is set, next returns
// an empty message when no chunks wait, unless Window messages are in flight. gone reports whether
// the reader has disconnected.
func (s *stream[Request, Chunk, Total]) next(keepAlive bool) (message *protocol.StreamMessage[Chunk, Total],
	gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || time.Since(s.seen) > protocol.StreamTimeout {
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

// publish sends a message and reports whether it was sent. In place of a message that is too large,
// publish sends a last message with the error.
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
