package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/wire"
)

const (
	maxStreams = 1024    // answered at once
	maxUnsent  = 1 << 16 // chunks of one answer that wait for a slow reader
)

// A stream sends one answer. Generating goes on while the reader is slow: the
// engine shares its steps among requests, and none may hold up the others.
type stream struct {
	agent  *Agent
	id     string
	cancel context.CancelCauseFunc
	wake   chan struct{}
	done   chan struct{} // closed when the last part is sent, or nobody listens

	mu     sync.Mutex
	chunks []engines.Chunk // not yet sent
	last   *wire.Part      // how it ended
	gone   bool            // nobody waits for the end
	seq    uint64          // of the newest part sent
	heard  uint64          // of the newest part that has arrived
	word   time.Time       // when the reader was last heard
}

var errReaderGone = errors.New("nobody reads the answer any more")

// complete begins to answer a request.
func (a *Agent) complete(life context.Context, m *nats.Msg) {
	var request wire.Completion
	if err := wire.Unmarshal(m.Data, &request); err != nil {
		a.refuse(m.Reply, err)
		return
	}
	ctx, cancel := context.WithCancelCause(life)
	s := &stream{agent: a, id: request.ID, cancel: cancel, wake: make(chan struct{}, 1), done: make(chan struct{}), word: time.Now()}
	a.mu.Lock()
	r := a.replicas[domain.ReplicaAllocationID(request.Deployment, request.Replica)]
	var err error
	switch {
	case a.leaving || r == nil:
		err = errNotHere
	case len(a.streams) >= maxStreams:
		err = domain.Faultf(domain.ResourceExhausted, "the node answers %d requests already: try again later, or raise maxReplicaCount", maxStreams)
	case request.ID == "" || a.streams[request.ID] != nil:
		err = domain.Faultf(domain.InvalidArgument, "the request needs an id of its own")
	default:
		a.streams[request.ID] = s
		a.work.Go(func() { s.answer(ctx, r, request.Request) })
		a.work.Go(s.send)
	}
	a.mu.Unlock()
	if err != nil {
		a.refuse(m.Reply, err)
	}
}

// refuse answers a request that is not begun.
func (a *Agent) refuse(reply string, err error) {
	if data, err := wire.Marshal(wire.Part{Version: wire.Version, Seq: 1, Done: true, Fault: wire.FaultOf(err)}); err == nil && reply != "" {
		_ = a.conn.Publish(reply, data) // unheard, it is as if nobody were there
	}
}

// hear learns what of a stream has arrived.
func (a *Agent) hear(m *nats.Msg) {
	var heard wire.Heard
	if wire.Unmarshal(m.Data, &heard) != nil {
		return
	}
	a.mu.Lock()
	s := a.streams[heard.ID]
	a.mu.Unlock()
	if s == nil {
		return
	}
	if heard.Stop {
		s.cancel(errReaderGone)
	}
	s.mu.Lock()
	s.heard, s.word = max(s.heard, heard.Seq), time.Now()
	s.mu.Unlock()
	s.rouse()
}

func (s *stream) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *stream) answer(ctx context.Context, r *replica, request engines.CompletionRequest) {
	usage, err := r.answer(ctx, request, func(c engines.Chunk) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.chunks) >= maxUnsent {
			return domain.Faultf(domain.ResourceExhausted, "the reader is %d pieces behind", maxUnsent)
		}
		s.chunks = append(s.chunks, c)
		s.rouse()
		return nil
	})
	s.mu.Lock()
	s.gone = errors.Is(context.Cause(ctx), errReaderGone)
	s.last = &wire.Part{Usage: &usage, Fault: wire.FaultOf(err), Done: true}
	s.mu.Unlock()
	s.rouse()
	<-s.done
	s.cancel(nil)
	s.agent.mu.Lock()
	delete(s.agent.streams, s.id)
	s.agent.mu.Unlock()
}

// send sends parts as the reader has room for them.
func (s *stream) send() {
	defer close(s.done)
	pulse := time.NewTicker(wire.Pulse)
	defer pulse.Stop()
	for alive := false; ; {
		part, gone := s.next(alive)
		if gone {
			s.cancel(errReaderGone)
			return
		}
		if part != nil {
			if !s.publish(part) {
				s.cancel(errReaderGone)
				return
			}
			if part.Done {
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
func (s *stream) next(alive bool) (part *wire.Part, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || time.Since(s.word) > wire.Silence {
		return nil, true
	}
	if s.seq-s.heard >= wire.Window || len(s.chunks) == 0 && s.last == nil && !alive {
		return nil, false
	}
	n := wire.Fit(s.chunks)
	part = &wire.Part{Chunks: s.chunks[:n:n]}
	s.chunks = s.chunks[n:]
	if len(s.chunks) == 0 && s.last != nil {
		part.Usage, part.Fault, part.Done = s.last.Usage, s.last.Fault, true
	}
	s.seq++
	part.Version, part.Seq = wire.Version, s.seq
	return part, false
}

func (s *stream) publish(part *wire.Part) bool {
	data, err := wire.Marshal(part)
	if err == nil {
		err = s.agent.conn.Publish(wire.StreamSubject(s.agent.options.Node, s.id), data)
	}
	if err != nil {
		s.agent.log.Warn("an answer breaks off", "stream", s.id, "error", err)
	}
	return err == nil
}
