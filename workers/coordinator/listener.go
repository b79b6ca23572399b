package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"anneal/domain"
	"anneal/projections/live"
	"anneal/workers/protocol"
)

// A listener receives the heartbeats of all nodes, and records the time up to which it has received
// all of them. To know that time, it publishes a probe on a subject of heartbeats and waits until
// its own subscription delivers the probe: the messages that the server received before the probe
// have then been delivered too. While the process is paused, the connection is lost or the server
// hangs, no probe arrives, and missing heartbeats have no effect.
type listener struct {
	conn    *nats.Conn
	live    *live.Status
	observe func(node string, m *nats.Msg) // records a heartbeat
	now     func() time.Time
	every   time.Duration // interval of the probes
	maxGap  time.Duration // maximum time between two probes; after a longer time, heartbeats may have been missed
	logger  *slog.Logger

	probe    string // first word in the content of this coordinator's probes
	returned chan string
}

// probeNode takes the place of the node in the subject of probes. It is not a valid ID, so that
// agents cannot publish on the subject and coordinators do not take a probe for a heartbeat.
const probeNode = "_probe"

func newListener(o Options, observe func(node string, m *nats.Msg)) *listener {
	return &listener{conn: o.Conn, live: o.World.Live(), observe: observe, now: o.Now, logger: o.Logger,
		every: min(o.LostAfter/10, time.Second), maxGap: o.LostAfter / 2,
		probe: nuid.Next(), returned: make(chan string, 1)}
}

// subscribe subscribes to heartbeats. One goroutine handles them in the order of their arrival.
func (l *listener) subscribe() (*nats.Subscription, error) {
	s, err := l.conn.Subscribe(protocol.HeartbeatSubject("*"), func(m *nats.Msg) {
		switch node := strings.Split(m.Subject, ".")[1]; {
		case domain.ValidID(node):
			l.observe(node, m)
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
		if l.roundTrip(ctx, fmt.Sprintf("%s %d", l.probe, n)) {
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
