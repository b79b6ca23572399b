package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

const (
	maxStreams = 1024    // answered at once
	maxUnsent  = 1 << 16 // pieces of one answer that wait for a slow reader
)

// A service is one thing that replicas are asked for.
type service[Request, Piece, Total any] struct {
	do   func(*replica, context.Context, Request, func(Piece) error) (Total, error)
	room func(Piece) int // about how many bytes a piece takes on its way
}

var (
	completing = service[engines.CompletionRequest, engines.Chunk, engines.Usage]{(*replica).complete, protocol.SizeOfChunk}
	listening  = service[engines.Transcription, engines.TranscriptEvent, engines.Transcript]{(*replica).listen, protocol.SizeOfTranscriptEvent}
)

// An answer is a stream of any service.
type answer interface {
	hear(protocol.StreamAck)
	ended() <-chan struct{} // closed when its last part is sent, or nobody listens
}

// A stream sends one answer. Work goes on while the reader is slow: an engine
// shares its steps among requests, and none may hold up the others.
type stream[Request, Piece, Total any] struct {
	service[Request, Piece, Total]
	agent  *Agent
	id     string
	cancel context.CancelCauseFunc
	wake   chan struct{}
	done   chan struct{}

	mu     sync.Mutex
	pieces []Piece                               // not yet sent
	last   *protocol.StreamMessage[Piece, Total] // how it ended
	gone   bool                                  // nobody waits for the end
	seq    uint64                                // of the newest part sent
	heard  uint64                                // of the newest part that has arrived
	word   time.Time                             // when the reader was last heard
}

var errReaderGone = errors.New("nobody reads the answer any more")

// take begins to answer a request.
func (v service[Request, Piece, Total]) take(a *Agent, life context.Context, m *nats.Msg) {
	var ask protocol.StreamRequest[Request]
	if err := protocol.Unmarshal(m.Data, &ask); err != nil {
		a.refuse(m.Reply, err)
		return
	}
	ctx, cancel := context.WithCancelCause(life)
	s := &stream[Request, Piece, Total]{service: v, agent: a, id: ask.ID, cancel: cancel, wake: make(chan struct{}, 1), done: make(chan struct{}), word: time.Now()}
	a.mu.Lock()
	r := a.replicas[domain.ReplicaAllocationID(ask.Deployment, ask.Replica)]
	var err error
	switch {
	case a.leaving || r == nil:
		err = errNotHere
	case len(a.streams) >= maxStreams:
		err = domain.Errorf(domain.ResourceExhausted, "the node answers %d requests already: try again later, or raise maxReplicaCount", maxStreams)
	case ask.ID == "" || a.streams[ask.ID] != nil:
		err = domain.Errorf(domain.InvalidArgument, "the request needs an id of its own")
	default:
		a.streams[ask.ID] = s
		a.work.Go(func() { s.answer(ctx, r, ask.Request) })
		a.work.Go(s.send)
	}
	a.mu.Unlock()
	if err != nil {
		cancel(nil)
		a.refuse(m.Reply, err)
	}
}

// refuse answers a request that is not begun.
func (a *Agent) refuse(reply string, err error) {
	if data, err := protocol.Marshal(protocol.StreamMessage[struct{}, struct{}]{Version: protocol.Version, Seq: 1, Done: true, Error: protocol.ErrorOf(err)}); err == nil && reply != "" {
		_ = a.conn.Publish(reply, data) // unheard, it is as if nobody were there
	}
}

// hear learns what of a stream has arrived.
func (a *Agent) hear(m *nats.Msg) {
	var heard protocol.StreamAck
	if protocol.Unmarshal(m.Data, &heard) != nil {
		return
	}
	a.mu.Lock()
	s := a.streams[heard.ID]
	a.mu.Unlock()
	if s != nil {
		s.hear(heard)
	}
}

func (s *stream[Request, Piece, Total]) hear(heard protocol.StreamAck) {
	if heard.Stop {
		s.cancel(errReaderGone)
	}
	s.mu.Lock()
	s.heard, s.word = max(s.heard, heard.Seq), time.Now()
	s.mu.Unlock()
	s.rouse()
}

func (s *stream[Request, Piece, Total]) ended() <-chan struct{} { return s.done }

func (s *stream[Request, Piece, Total]) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *stream[Request, Piece, Total]) answer(ctx context.Context, r *replica, request Request) {
	total, err := s.do(r, ctx, request, func(piece Piece) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.pieces) >= maxUnsent {
			return domain.Errorf(domain.ResourceExhausted, "the reader is %d pieces behind", maxUnsent)
		}
		s.pieces = append(s.pieces, piece)
		s.rouse()
		return nil
	})
	s.mu.Lock()
	s.gone = errors.Is(context.Cause(ctx), errReaderGone)
	s.last = &protocol.StreamMessage[Piece, Total]{Total: &total, Error: protocol.ErrorOf(err), Done: true}
	s.mu.Unlock()
	s.rouse()
	<-s.done
	s.agent.mu.Lock()
	delete(s.agent.streams, s.id)
	s.agent.mu.Unlock()
}

// send sends parts as the reader has room for them. When it returns nobody
// waits for anything more.
func (s *stream[Request, Piece, Total]) send() {
	defer close(s.done)
	defer s.cancel(errReaderGone)
	pulse := time.NewTicker(protocol.KeepAlive)
	defer pulse.Stop()
	for alive := false; ; {
		part, gone := s.next(alive)
		if gone {
			return
		}
		if part != nil {
			if !s.publish(part) || part.Done {
				return
			}
			alive = false
			continue
		}
		select {
		case <-s.wake:
			alive = false
		case <-pulse.C:
			alive = true
		}
	}
}

// next is the part to send now, nil when there is none; alive asks for an
// empty one. gone tells that the reader is not there any more.
func (s *stream[Request, Piece, Total]) next(alive bool) (part *protocol.StreamMessage[Piece, Total], gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || time.Since(s.word) > protocol.StreamTimeout {
		return nil, true
	}
	if s.seq-s.heard >= protocol.Window || len(s.pieces) == 0 && s.last == nil && !alive {
		return nil, false
	}
	n := protocol.FitChunks(s.pieces, s.room)
	part = &protocol.StreamMessage[Piece, Total]{Chunks: s.pieces[:n:n]}
	s.pieces = s.pieces[n:]
	if len(s.pieces) == 0 && s.last != nil {
		part.Total, part.Error, part.Done = s.last.Total, s.last.Error, true
	}
	s.seq++
	part.Version, part.Seq = protocol.Version, s.seq
	return part, false
}

// publish sends a part. One that is too large for a message becomes the last,
// which says so.
func (s *stream[Request, Piece, Total]) publish(part *protocol.StreamMessage[Piece, Total]) bool {
	data, err := protocol.Marshal(part)
	if err != nil {
		*part = protocol.StreamMessage[Piece, Total]{Version: part.Version, Seq: part.Seq, Error: protocol.ErrorOf(err), Done: true}
		data, err = protocol.Marshal(part)
	}
	if err == nil {
		err = s.agent.conn.Publish(protocol.StreamSubject(s.agent.options.Node, s.id), data)
	}
	if err != nil {
		s.agent.log.Warn("an answer breaks off", "stream", s.id, "error", err)
	}
	return err == nil
}
