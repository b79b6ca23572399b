package agent

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

const (
	frameBytes  = 512 << 10       // maximum bytes of content in a frame
	frameWindow = 16              // maximum number of frames that are sent but not acknowledged
	resendAfter = 2 * time.Second // frames are sent again when no acknowledgement arrives for this time
)

// A gangLink exchanges messages with another node of a gang. NATS delivers a frame at most once,
// and drops a frame that is sent before the other node has subscribed. So frames are numbered and
// acknowledged, and sent again when they are not acknowledged. They are encrypted with the key of
// the gang.
type gangLink struct {
	publish func(subject string, frame []byte) error
	seal    cipher.AEAD
	// number of the direction of sent frames; it is part of their nonces, so that both directions
	// can share a key
	outgoing uint32
	incoming uint32
	subject  string // NATS subject to which frames and acknowledgements are sent
	received chan []byte
	next     uint64 // number of the next frame to receive; used only by handle
	partial  []byte // content received so far of a message whose last frame has not arrived

	mu      sync.Mutex
	unacked [][]byte // encrypted frames without an acknowledgement; the first of them has the number acked
	acked   uint64
	wake    chan struct{} // receives an element when the other node acknowledges frames

	sending sync.Mutex
}

// Kinds of frames.
const (
	frameContent = iota
	frameEnd     // has content, and is the last frame of a message
	frameAck     // acknowledges all frames with lower numbers
)

// frameHeader is the length in bytes of the header of a frame before encryption: its number (8
// bytes) and its kind (1 byte). The content of the frame follows.
const frameHeader = 9

// joinGang connects this node to the other nodes of its gang. leave closes the connections; it is
// never nil. gang is nil for an attempt on one node.
func (t *attempt) joinGang() (gang *engines.Gang, leave func(), err error) {
	var subscriptions []*nats.Subscription
	ctx, cancel := context.WithCancel(t.life)
	leave = func() {
		cancel()
		for _, s := range subscriptions {
			_ = s.Unsubscribe() // fails only when the connection is closed
		}
	}
	g := t.assignment.Gang
	if g == nil {
		return nil, leave, nil
	}
	block, err := aes.NewCipher(g.Key)
	if err != nil {
		return nil, leave, domain.Errorf(domain.Unavailable, "decode the encryption key of the gang: %v", err)
	}
	seal, err := cipher.NewGCM(block)
	if err != nil {
		return nil, leave, err
	}
	gang = &engines.Gang{Rank: g.Rank}
	for rank, node := range g.Nodes {
		if rank == g.Rank || g.Rank > 0 && rank > 0 {
			continue
		}
		l := newGangLink(t.agent.conn.Publish, seal, g, rank)
		s, err := t.agent.conn.Subscribe(protocol.GangSubject(node, g.ID, g.Rank), l.handle)
		if err != nil {
			return nil, leave, fmt.Errorf("subscribe to the messages of the gang: %w", err)
		}
		if err := s.SetPendingLimits(-1, -1); err != nil { // frameWindow already limits the number of pending messages
			return nil, leave, err
		}
		go l.resend(ctx)
		subscriptions, gang.Links = append(subscriptions, s), append(gang.Links, l)
	}
	return gang, leave, nil
}

func newGangLink(
	publish func(string, []byte) error, seal cipher.AEAD, g *protocol.Gang, peer int,
) *gangLink {
	return &gangLink{publish: publish, seal: seal, outgoing: uint32(g.Rank)<<16 | uint32(peer),
		incoming: uint32(peer)<<16 | uint32(g.Rank), subject: protocol.GangSubject(g.Nodes[g.Rank], g.ID, peer),
		received: make(chan []byte, frameWindow), wake: make(chan struct{}, 1)}
}

// sealed returns an encrypted frame. The nonce consists of the direction, the kind and the number
// of the frame. So no nonce is used for two different frames under the key of an attempt.
func (l *gangLink) sealed(number uint64, kind byte, content []byte) []byte {
	plain := make([]byte, frameHeader, frameHeader+len(content))
	binary.BigEndian.PutUint64(plain, number)
	plain[8] = kind
	nonce := nonceOf(l.outgoing, kind, number)
	return l.seal.Seal(nonce, nonce, append(plain, content...), nil)
}

func nonceOf(direction uint32, kind byte, number uint64) []byte {
	nonce := binary.BigEndian.AppendUint32(make([]byte, 0, 12), direction)
	if kind == frameAck {
		number |= 1 << 63
	}
	return binary.BigEndian.AppendUint64(nonce, number)
}

// Send implements engines.Link. It may return before the other node has received the message.
func (l *gangLink) Send(ctx context.Context, message []byte) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	for first := true; first || len(message) > 0; first = false {
		content, kind := message[:min(len(message), frameBytes)], byte(frameContent)
		if message = message[len(content):]; len(message) == 0 {
			kind = frameEnd
		}
		if err := l.await(ctx, frameWindow-1); err != nil {
			return err
		}
		l.mu.Lock()
		frame := l.sealed(l.acked+uint64(len(l.unacked)), kind, content)
		l.unacked = append(l.unacked, frame)
		l.mu.Unlock()
		_ = l.publish(l.subject, frame) // if this fails, resend sends the frame again
	}
	return nil
}

// await waits until at most limit sent frames are unacknowledged.
func (l *gangLink) await(ctx context.Context, limit int) error {
	for {
		l.mu.Lock()
		frames := l.unacked
		l.mu.Unlock()
		if len(frames) <= limit {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.wake:
		}
	}
}

// resend sends all unacknowledged frames again whenever no acknowledgement has arrived for
// resendAfter.
func (l *gangLink) resend(ctx context.Context) {
	ticker := time.NewTicker(resendAfter)
	defer ticker.Stop()
	var before uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		l.mu.Lock()
		frames, acked := slices.Clone(l.unacked), l.acked
		l.mu.Unlock()
		if acked == before {
			for _, frame := range frames {
				_ = l.publish(l.subject, frame)
			}
		}
		before = acked
	}
}

// Receive implements engines.Link.
func (l *gangLink) Receive(ctx context.Context) ([]byte, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case plain := <-l.received:
			l.acknowledge(binary.BigEndian.Uint64(plain) + 1)
			l.partial = append(l.partial, plain[frameHeader:]...)
			if plain[8] == frameEnd {
				message := l.partial
				l.partial = nil
				return message, nil
			}
		}
	}
}

func (l *gangLink) acknowledge(number uint64) {
	_ = l.publish(l.subject, l.sealed(number, frameAck, nil))
}

// handle handles a received frame. It ignores frames that were not encrypted with the key of the
// gang.
func (l *gangLink) handle(m *nats.Msg) {
	size := l.seal.NonceSize()
	if len(m.Data) < size {
		return
	}
	plain, err := l.seal.Open(nil, m.Data[:size], m.Data[size:], nil)
	if err != nil || len(plain) < frameHeader || binary.BigEndian.Uint32(m.Data) != l.incoming {
		return
	}
	number := binary.BigEndian.Uint64(plain)
	switch {
	case plain[8] == frameAck:
		l.release(number)
	case number < l.next: // received before, and sent again because the acknowledgement was lost or late
		if len(l.received) == 0 {
			l.acknowledge(l.next)
		}
	case number == l.next:
		select {
		case l.received <- plain:
			l.next++
		default: // more frames than the window allows: the sender does not follow the protocol
		}
	}
}

// release removes the frames with lower numbers than number from unacked.
func (l *gangLink) release(number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if number <= l.acked || number > l.acked+uint64(len(l.unacked)) {
		return
	}
	l.unacked, l.acked = l.unacked[number-l.acked:], number
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// assist computes for the node that leads the gang. It then waits until the attempt is over,
// because only the leader reports the end.
func (t *attempt) assist(trainer engines.Trainer, request engines.TrainRequest) error {
	helper, ok := trainer.(engines.GangTrainer)
	if !ok {
		return domain.Errorf(domain.Unavailable, "the engine of the node cannot train on several nodes")
	}
	if err := helper.Assist(t.work, request); err != nil {
		return err
	}
	<-t.work.Done()
	return errors.Join(t.work.Err(), context.Cause(t.work))
}
