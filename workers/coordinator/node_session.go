package coordinator

import (
	"slices"
	"sync"
	"time"

	"anneal/domain"
	"anneal/workers/protocol"
)

// nodeSessions holds the session of each node.
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

// A nodeSession is the coordinator's state for a node. It is lost when the coordinator restarts.
//
// With the session, the coordinator distinguishes an agent that was restarted from an agent that
// has not yet started an assigned attempt. An attempt that was assigned to an earlier boot and that
// the current boot does not list was lost with the earlier boot. The agent also records the
// attempts that it has started (workers/agent/started.go); the session is for nodes whose disk is
// lost together with the agent.
type nodeSession struct {
	mu         sync.Mutex // held while a heartbeat is handled
	boot       string
	number     uint64                   // number of the newest heartbeat of that boot
	superseded []string                 // earlier boots, each replaced by a newer boot
	started    map[string]string        // attempt → boot that it was assigned to
	metrics    map[string]storedMetrics // attempt → metrics file that metricsFiles.storePreviews stored last

	status struct {
		mu     sync.Mutex
		boot   string
		number uint64 // number of the newest heartbeat of that boot in the live status
	}
}

type storedMetrics struct {
	step int
	time time.Time
}

const maxSuperseded = 16

// accept records the heartbeat and returns nil when it is the newest of the node. Otherwise it
// returns why the heartbeat must be ignored. After another agent has registered as the node, every
// heartbeat of the earlier agent is refused.
func (s *nodeSession) accept(heartbeat protocol.Heartbeat) error {
	switch {
	case slices.Contains(s.superseded, heartbeat.Boot):
		return &domain.Error{Code: domain.FailedPrecondition, Reason: protocol.TakenOver,
			Message: "another agent has registered as this node: stop one of the two agents, or start one with another " +
				"--node-id"}
	case heartbeat.Boot == s.boot && heartbeat.Number <= s.number:
		return domain.Errorf(domain.Aborted, "a newer heartbeat was handled first")
	case heartbeat.Boot != s.boot && s.boot != "":
		s.superseded = append(s.superseded, s.boot)
		if extra := len(s.superseded) - maxSuperseded; extra > 0 {
			s.superseded = slices.Delete(s.superseded, 0, extra)
		}
	}
	s.boot, s.number = heartbeat.Boot, heartbeat.Number
	return nil
}

// firstBoot reports whether the coordinator has seen only one boot of the node. In that case, an
// attempt that the agent has lost ended while the coordinator was down, for example because the
// agent runs in the process of the control plane. Such an attempt does not count as a failure of
// the job, because a control plane that restarts often would fail every job. Only a series of such
// attempts fails a job, see domain.CrashLoop.
func (s *nodeSession) firstBoot() bool { return len(s.superseded) == 0 }

// overtaken reports whether the live status already has a newer heartbeat of the same boot. If not,
// overtaken records the number of this heartbeat as the newest. The caller holds status.mu.
func (s *nodeSession) overtaken(heartbeat protocol.Heartbeat) bool {
	if heartbeat.Boot == s.status.boot && heartbeat.Number < s.status.number {
		return true
	}
	s.status.boot, s.status.number = heartbeat.Boot, heartbeat.Number
	return false
}
