package coordinator

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections/live"
	"anneal/workers/protocol"
)

// A listener receives the heartbeats of all nodes. It also records up to which time it has
// certainly received all of them, because only then does a missing heartbeat mean that a node is
// lost.
//
// To find that time, it publishes a probe on a subject of heartbeats and waits until its own
// subscription delivers it: all messages that the NATS server received before the probe have then
// been delivered. It also sends a request to the leader of the log, because its NATS server may be
// separated from those of the nodes. So no node is lost while this process is paused, its
// connection is interrupted, its server hangs or it cannot reach the leader of the log.
//
// The listeners of several control planes tell each other which heartbeats they have received, so
// that a node is lost only if none of them has received one.
type listener struct {
	conn    *nats.Conn
	log     eventlog.Log
	live    *live.Status
	observe func(node string, m *nats.Msg) // called with each heartbeat, whose node it gets from the subject
	now     func() time.Time
	every   time.Duration // interval of the probes
	// maximum time between two delivered probes; after a longer time, heartbeats may have been missed
	maxGap time.Duration
	logger *slog.Logger

	probe    string // random ID of this listener, with which the content of its probes begins
	returned chan string

	mu       sync.Mutex
	received map[string]time.Time // by node: time of its last heartbeat since the last call of share
}

// probeNode is the node in the subject of probes. It is not a valid node ID, so no agent may
// publish there, and no coordinator takes a probe for a heartbeat.
const probeNode = "_probe"

// receivedNode is the node in the subject on which coordinators share which heartbeats they
// received. Like probeNode it is not a valid node ID.
const receivedNode = "_received"

// maxShared is the maximum number of nodes in a receivedHeartbeats message.
const maxShared = 1000

// A receivedHeartbeats message says which heartbeats a coordinator has received.
type receivedHeartbeats struct {
	By    string           `json:"by"`    // ID of the sending listener: its field probe
	Nodes map[string]int64 `json:"nodes"` // by node: milliseconds since its last heartbeat
}

func newListener(o Options, observe func(node string, m *nats.Msg)) *listener {
	return &listener{conn: o.Conn, log: o.Log, live: o.World.Live(), observe: observe, now: o.Now, logger: o.Logger,
		every: min(o.LostAfter/10, time.Second), maxGap: o.LostAfter / 2,
		probe: nuid.Next(), returned: make(chan string, 1), received: map[string]time.Time{}}
}

// subscribe subscribes to heartbeats and probes. One goroutine handles them in the order in which
// they arrive.
func (l *listener) subscribe() (*nats.Subscription, error) {
	s, err := l.conn.Subscribe(protocol.HeartbeatSubject("*"), func(m *nats.Msg) {
		switch node := strings.Split(m.Subject, ".")[1]; {
		case domain.ValidID(node):
			l.observe(node, m)
			l.mu.Lock()
			l.received[node] = l.now()
			l.mu.Unlock()
		case node == receivedNode:
			l.receivedElsewhere(m)
		case node == probeNode && strings.HasPrefix(string(m.Data), l.probe):
			select {
			case l.returned <- string(m.Data):
			default: // roundTrip no longer waits for this probe
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to heartbeats: %w", err)
	}
	return s, nil
}

// run sends probes every l.every until ctx is done.
func (l *listener) run(ctx context.Context, s *nats.Subscription) {
	var last struct {
		sent       time.Time
		dropped    int
		reconnects uint64
	}
	ticker := time.NewTicker(l.every)
	defer ticker.Stop()
	for n := 0; ; n++ {
		next := last
		next.sent = l.now()
		l.share()
		if l.roundTrip(ctx, fmt.Sprintf("%s %d", l.probe, n)) && l.reachesLog(ctx) {
			next.dropped, _ = s.Dropped()
			next.reconnects = l.conn.Stats().Reconnects
			gap := next.sent.Sub(last.sent)
			if last.sent.IsZero() || gap > l.maxGap || next.dropped != last.dropped || next.reconnects != last.reconnects {
				if !last.sent.IsZero() {
					l.logger.Warn("heartbeats of nodes may have been missed: no node is marked as lost until its timeout has "+
						"passed once more",
						"noProbeFor", gap.Round(time.Millisecond), "reconnects", next.reconnects-last.reconnects,
						"dropped", next.dropped-last.dropped)
				}
				l.live.ListenFrom(l.now())
			}
			l.live.ReceivedAll(next.sent)
			last = next
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// roundTrip publishes a probe and reports whether the subscription delivered it within maxGap. The
// probe can be lost with the connection.
func (l *listener) roundTrip(ctx context.Context, probe string) bool {
	if l.conn.Publish(protocol.HeartbeatSubject(probeNode), []byte(probe)) != nil {
		return false
	}
	timeout := time.NewTimer(l.maxGap)
	defer timeout.Stop()
	for {
		select {
		case returned := <-l.returned:
			if returned == probe {
				return true
			}
		case <-timeout.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// reachesLog reports whether the leader of the log replies.
func (l *listener) reachesLog(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, l.maxGap)
	defer cancel()
	_, err := l.log.Last(ctx)
	return err == nil
}

// share publishes from which nodes this coordinator has received heartbeats since the last call.
func (l *listener) share() {
	l.mu.Lock()
	received := l.received
	l.received = map[string]time.Time{}
	l.mu.Unlock()
	message := receivedHeartbeats{l.probe, map[string]int64{}}
	publish := func() {
		content, _ := json.Marshal(message) // Marshal returns no error: the message can always be encoded
		// if the message is lost, the heartbeats of the next interval are still shared
		_ = l.conn.Publish(protocol.HeartbeatSubject(receivedNode), content)
		clear(message.Nodes)
	}
	for node, at := range received {
		message.Nodes[node] = l.now().Sub(at).Milliseconds()
		if len(message.Nodes) == maxShared {
			publish()
		}
	}
	if len(message.Nodes) > 0 {
		publish()
	}
}

// receivedElsewhere records which heartbeats another coordinator has received.
func (l *listener) receivedElsewhere(m *nats.Msg) {
	var message receivedHeartbeats
	if json.Unmarshal(m.Data, &message) != nil || message.By == l.probe {
		return
	}
	for node, age := range message.Nodes {
		if domain.ValidID(node) && age >= 0 {
			l.live.Heartbeat(nodeName(node), l.now().Add(-time.Duration(age)*time.Millisecond))
		}
	}
}
