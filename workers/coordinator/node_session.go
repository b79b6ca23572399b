package coordinator

import (
	"slices"
	"sync"
	"time"

	"anneal/domain"
	"anneal/workers/protocol"
)

// nodeSessions has the nodeSession of each node.
type nodeSessions struct {
	mu    sync.Mutex
	nodes map[string]*nodeSession
}

func (s *nodeSessions) get(node string) *nodeSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	session := s.nodes[node]
	if session == nil {
		session = &nodeSession{started: map[string]string{}, metrics: map[string]storedMetrics{}}
		s.nodes[node] = session
	}
	return session
}

// A nodeSession is what this process remembers of a node's agent. It is lost when the process
// restarts.
//
// It distinguishes an agent that was restarted from one that has not started an assigned attempt
// yet: an attempt that was assigned to an earlier boot and is not in the heartbeats of the current
// boot was lost with the earlier one. Agents also record on disk which attempts they have started
// (workers/agent/started.go); the session covers nodes that lost their disk.
type nodeSession struct {
	mu         sync.Mutex               // locked while a heartbeat of this node is handled
	boot       string                   // ID of the agent's current process: protocol.Heartbeat.Boot
	number     uint64                   // sequence number of the newest heartbeat of the boot
	superseded []string                 // IDs of earlier boots of the agent
	started    map[string]string        // by attempt: ID of the boot of the agent to which the attempt was assigned
	metrics    map[string]storedMetrics // by attempt: the metrics file that storePreviews stored last for it

	status struct {
		mu     sync.Mutex
		boot   string
		number uint64 // sequence number of the newest heartbeat of the boot in the live status
	}
}

type storedMetrics struct {
	step int
	time time.Time
}

const maxSuperseded = 16

// accept records a heartbeat as the node's newest, and returns nil. It returns an error when the
// heartbeat must be ignored, because a newer one was handled, or because another agent has since
// registered as the node.
func (s *nodeSession) accept(heartbeat protocol.Heartbeat) error {
	switch {
	case slices.Contains(s.superseded, heartbeat.Boot):
		return &domain.Error{Code: domain.FailedPrecondition, Reason: protocol.TakenOver,
			Message: "another agent has registered as this node: stop one of the two agents, or start one with another " +
				"--node-id"}
	case heartbeat.Boot == s.boot && heartbeat.Number <= s.number:
		return domain.Errorf(domain.Aborted, "the heartbeat is older than one that was handled before")
	case heartbeat.Boot != s.boot && s.boot != "":
		s.superseded = append(s.superseded, s.boot)
		if extra := len(s.superseded) - maxSuperseded; extra > 0 {
			s.superseded = slices.Delete(s.superseded, 0, extra)
		}
	}
	s.boot, s.number = heartbeat.Boot, heartbeat.Number
	return nil
}

// firstBoot reports whether this process has seen only one boot of the node's agent. If so,
// attempts from before that boot were lost while this control plane was down, for example because
// the agent runs in the same process. Such attempts do not count as failures of their jobs, because
// a control plane that restarts often would fail every job. Only a series of such attempts fails a
// job: see domain.CrashLoop.
func (s *nodeSession) firstBoot() bool { return len(s.superseded) == 0 }

// overtaken reports whether the live status already has a newer heartbeat of the same boot. If not,
// it records this heartbeat as the newest. The caller holds status.mu.
func (s *nodeSession) overtaken(heartbeat protocol.Heartbeat) bool {
	if heartbeat.Boot == s.status.boot && heartbeat.Number < s.status.number {
		return true
	}
	s.status.boot, s.status.number = heartbeat.Boot, heartbeat.Number
	return false
}
