package live

import (
	"time"

	"anneal/domain"
)

// UnreachableTime is how long a replica stays marked as unreachable for requests if no heartbeat
// lists it. Then requests are sent to it again.
const UnreachableTime = 30 * time.Second

// MarkNode records when no agent responded on a node, and so none of its replicas.
func (s *Status) MarkNode(node domain.Name, failTime time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, _ := s.now.nodes.Get(node)
	s.mark(string(node), last, failTime)
}

// MarkReplica records when a replica did not respond.
func (s *Status) MarkReplica(deployment domain.Name, replica string, failTime time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := replicaKey(deployment, replica)
	load, _ := s.now.replicas.Get(key)
	s.mark(key, load.Time, failTime)
}

// mark records a mark. listed is the time of the last heartbeat that may have ended an earlier mark;
// a mark that has just been recorded, and did not end, is not recorded again.
func (s *Status) mark(key string, listed, failTime time.Time) {
	since, known := s.now.marks.Get(key)
	if known && since.After(listed) && failTime.Sub(since) < UnreachableTime/3 {
		return
	}
	var expired []string
	s.now.marks.Scan(func(old string, since time.Time) bool {
		if failTime.Sub(since) > UnreachableTime {
			expired = append(expired, old)
		}
		return true
	})
	for _, old := range expired {
		s.now.marks.Delete(old)
	}
	s.now.marks.Set(key, failTime)
	s.now.reports++
}

// Unreachable returns the replicas of a deployment that are marked as unreachable, or whose nodes are,
// with the time of the mark. A mark ends when a heartbeat lists the replica.
func (v View) Unreachable(name domain.Name, d *domain.Deployment) map[string]time.Time {
	if v.marks == nil || v.marks.Len() == 0 {
		return nil
	}
	found := map[string]time.Time{}
	for id, r := range d.Replicas {
		since, _ := v.marks.Get(replicaKey(name, id))
		if at, _ := v.marks.Get(string(r.Node)); at.After(since) {
			since = at
		}
		if load, _ := v.Replica(name, id); since.After(load.Time) {
			found[id] = since
		}
	}
	return found
}
