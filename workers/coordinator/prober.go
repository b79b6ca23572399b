package coordinator

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/domain"
	"anneal/projections"
	"anneal/workers/protocol"
)

// A prober finds the nodes with replicas whose agent has ended or is disconnected, long before they
// are lost, and marks them in the live status. It sends each node a message that agents ignore; if
// the agent has no subscription, the NATS server replies that there is no responder. Two such replies
// in succession mark a node, because an agent or a NATS server may be reconnecting.
type prober struct {
	conn  *nats.Conn
	world *projections.World
	now   func() time.Time
	inbox string
	last  domain.Name // node that was probed last
}

const (
	probeInterval = 500 * time.Millisecond
	maxProbes     = 100 // maximum number of nodes that are probed in one interval
	// heartbeatOverdue is the age of a node's last heartbeat from which it is probed before others. It
	// is more than the interval of heartbeats.
	heartbeatOverdue = 3 * time.Second
)

// run probes the nodes until ctx is done.
func (p *prober) run(ctx context.Context) error {
	p.inbox = p.conn.NewInbox()
	missed := map[string]time.Time{} // by node: when its agent last had no subscription
	replies, err := p.conn.Subscribe(p.inbox+".*", func(m *nats.Msg) {
		if m.Header.Get("Status") != "503" { // no responders
			return
		}
		node, now := strings.TrimPrefix(m.Subject, p.inbox+"."), p.now()
		if now.Sub(missed[node]) <= 3*probeInterval {
			p.world.Live().MarkNode(nodeName(node), now)
		}
		missed[node] = now
	})
	if err != nil {
		return fmt.Errorf("subscribe to the replies to probes of nodes: %w", err)
	}
	defer func() { _ = replies.Unsubscribe() }() // fails only when the connection is closed
	message, err := protocol.Marshal(protocol.StreamAck{Version: protocol.Version})
	if err != nil {
		return err
	}
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		for _, name := range p.next(p.world.View(), p.now()) {
			node := name.ID()
			// If this fails, the node is probed again after the others.
			_ = p.conn.PublishRequest(protocol.AckSubject(node), p.inbox+"."+node, message)
		}
	}
}

// next returns the nodes to probe now: those whose heartbeat is overdue, and of the others with
// replicas the next ones in the order of their names.
func (p *prober) next(v *projections.View, now time.Time) []domain.Name {
	var overdue, after, before []domain.Name
	for row := range v.Nodes.All() {
		switch {
		case row.State.State != domain.NodeReady || !hostsReplica(&row.State):
		case now.Sub(v.Live.LastHeartbeat(row.Name)) > heartbeatOverdue:
			overdue = append(overdue, row.Name)
		case row.Name > p.last:
			after = append(after, row.Name)
		default:
			before = append(before, row.Name)
		}
	}
	chosen := append(overdue, append(after, before...)...)
	chosen = chosen[:min(len(chosen), maxProbes)]
	if len(chosen) > len(overdue) {
		p.last = chosen[len(chosen)-1]
	}
	return chosen
}

func hostsReplica(n *domain.Node) bool {
	for _, allocation := range n.Allocations {
		if allocation.Replica != "" {
			return true
		}
	}
	return false
}
