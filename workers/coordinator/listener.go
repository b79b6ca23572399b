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

// A listener receives the heartbeats of all nodes, and records the time up to which it has received
// all of them. To know that time, it publishes a probe on a subject of heartbeats and waits until
// its own subscription delivers the probe: the messages that the server received before the probe
// have then been delivered too. It then asks the leader of the log, because its server may be
// separated from the other servers, to which nodes are connected. While the process is paused, the
// connection is lost, the server hangs or the log has no leader that it reaches, missing heartbeats
// have no effect.
//
// Listeners of several control planes share when they received heartbeats, so that a node is lost
// only if none of them has received one.
type listener struct {
	conn    *nats.Conn
	log     eventlog.Log
	live    *live.Status
	observe func(node string, m *nats.Msg) // records a heartbeat
	now     func() time.Time
	every   time.Duration // interval of the probes
	maxGap  time.Duration // maximum time between two probes; after a longer time, heartbeats may have been missed
	logger  *slog.Logger

	probe    string // first word in the content of this coordinator's probes
	returned chan string

	mu       sync.Mutex
	received map[string]time.Time // last heartbeat of each node since the last call of share
}

// probeNode takes the place of the node in the subject of probes. It is not a valid ID, so that
// agents cannot publish on the subject and coordinators do not take a probe for a heartbeat.
const probeNode = "_probe"

// receivedNode takes the place of the node in the subject on which coordinators share the heartbeats
// that they have received. Like probeNode, it is not a valid ID.
const receivedNode = "_received"

// maxShared is the maximum number of nodes in one message of share.
const maxShared = 1000

// receivedHeartbeats are the heartbeats that a coordinator has received.
type receivedHeartbeats struct {
	By    string           `json:"by"`    // the probe of the coordinator
	Nodes map[string]int64 `json:"nodes"` // milliseconds since the last heartbeat of each node
}

func newListener(o Options, observe func(node string, m *nats.Msg)) *listener {
	return &listener{conn: o.Conn, log: o.Log, live: o.World.Live(), observe: observe, now: o.Now, logger: o.Logger,
		every: min(o.LostAfter/10, time.Second), maxGap: o.LostAfter / 2,
		probe: nuid.Next(), returned: make(chan string, 1), received: map[string]time.Time{}}
}

// subscribe subscribes to heartbeats. One goroutine handles them in the order of their arrival.
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
			default: // nobody waits for this probe any more
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to heartbeats: %w", err)
	}
	return s, nil
}

// run sends probes until ctx is done.
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
					l.logger.Warn("heartbeats may have been missed: the timeout after which a silent node is lost starts again",
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

// roundTrip publishes a probe and reports whether it was delivered to the subscription. It gives up
// after maxGap: the probe may be lost with the connection.
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

// reachesLog reports whether the leader of the log responds.
func (l *listener) reachesLog(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, l.maxGap)
	defer cancel()
	_, err := l.log.Last(ctx)
	return err == nil
}

// share publishes which nodes this coordinator has received heartbeats of since the last call.
func (l *listener) share() {
	l.mu.Lock()
	received := l.received
	l.received = map[string]time.Time{}
	l.mu.Unlock()
	message := receivedHeartbeats{l.probe, map[string]int64{}}
	publish := func() {
		content, _ := json.Marshal(message)                                  // never fails
		_ = l.conn.Publish(protocol.HeartbeatSubject(receivedNode), content) // they are shared again with the next heartbeat
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

// receivedElsewhere records the heartbeats that another coordinator has received.
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
