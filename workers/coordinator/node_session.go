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

// A nodeSession is what the coordinator remembers of a node.
//
// It distinguishes an agent that was restarted from one that has not yet started an attempt that
// it was assigned: an attempt that was assigned to an earlier boot and that the current boot does
// not list was lost with the earlier boot. The agent knows the same from its own records
// (agent/started.go), which outlive the coordinator; the session is for nodes whose disk is lost
// together with the agent.
type nodeSession struct {
	mu         sync.Mutex // held while a heartbeat is handled
	boot       string
	number     uint64                   // of the newest heartbeat of that boot
	superseded []string                 // boots that a newer one has replaced
	started    map[string]string        // attempt → boot that it was assigned to
	metrics    map[string]storedMetrics // attempt → see metricsFiles.storePreview

	status struct {
		mu     sync.Mutex
		boot   string
		number uint64 // of the newest heartbeat of that boot in the live status
	}
}

type storedMetrics struct {
	step int
	time time.Time
}

const maxSuperseded = 16

// accept reports why the heartbeat must be ignored: nil when it is the newest of the node. An
// agent that another has replaced is refused for good.
func (s *nodeSession) accept(heartbeat protocol.Heartbeat) error {
	switch {
	case slices.Contains(s.superseded, heartbeat.Boot):
		return &domain.Error{Code: domain.FailedPrecondition, Reason: protocol.TakenOver,
			Message: "another agent has registered as this node: stop one of them, or rename one"}
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

// firstBoot reports whether the coordinator has seen no other boot of the node. What such an agent
// has lost, it lost while the coordinator was down: an agent in the process of the control plane
// ends whenever that does. This does not count as a failure of the job, or a control plane that
// restarts often would fail every job; only several such losses in a row do (domain.MaxFailures).
func (s *nodeSession) firstBoot() bool { return len(s.superseded) == 0 }

// overtaken reports whether the live status already holds a newer heartbeat of the same boot, and
// otherwise records that it holds this one. status.mu must be held.
func (s *nodeSession) overtaken(heartbeat protocol.Heartbeat) bool {
	if heartbeat.Boot == s.status.boot && heartbeat.Number < s.status.number {
		return true
	}
	s.status.boot, s.status.number = heartbeat.Boot, heartbeat.Number
	return false
}
