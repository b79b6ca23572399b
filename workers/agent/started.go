package agent

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"anneal/domain"
	"anneal/workers/protocol"
)

// startedAttempts records on disk which attempts were started, so that no attempt is started twice.
//
// An attempt that ran twice, before and after its agent was killed, could store two different
// checkpoints of one step under one name. After the coordinator has lost its state, only the agent
// knows which attempts it has started. So the agent reports the attempts of an earlier run as lost
// until the coordinator no longer keeps them: the coordinator requeues their jobs, which resume
// from their last checkpoints in the next attempt.
type startedAttempts struct {
	dir string
	mu  sync.Mutex
	ids map[string]record
}

type record struct {
	Job        domain.Name `json:"job"`
	Attempt    int         `json:"attempt"`
	CreateTime time.Time   `json:"made"`
	current    bool        // started by this run of the agent
}

// open reads the records of earlier runs.
func (s *startedAttempts) open() error {
	s.ids = map[string]record{}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(s.dir, entry.Name()))
		if err != nil {
			return err
		}
		var n record
		if json.Unmarshal(data, &n) != nil || n.Job == "" {
			// The agent crashed while it wrote the record, so the attempt was not started.
			if err := os.Remove(filepath.Join(s.dir, entry.Name())); err != nil {
				return err
			}
			continue
		}
		s.ids[domain.AllocationID(n.Job, n.Attempt)] = n
	}
	return nil
}

// add writes a durable record that an attempt is started.
func (s *startedAttempts) add(assignment protocol.TrainAssignment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := record{assignment.Job, assignment.Attempt, assignment.CreateTime, true}
	data, err := json.Marshal(n)
	if err != nil {
		return err
	}
	id := assignment.ID()
	f, err := os.Create(s.path(id))
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close(), syncDir(s.dir)); err != nil {
		return err
	}
	s.ids[id] = n
	return nil
}

// forget removes the record of an attempt that the coordinator does not keep.
func (s *startedAttempts) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ids, id)
	_ = os.Remove(s.path(id)) // if the removal fails, the next run of the agent removes the record
}

func (s *startedAttempts) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, has := s.ids[id]
	return has
}

// lost returns the attempts that earlier runs started.
func (s *startedAttempts) lost() []protocol.Attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lost []protocol.Attempt
	for _, n := range s.ids {
		if !n.current {
			lost = append(lost, protocol.Attempt{Job: n.Job, Attempt: n.Attempt, CreateTime: n.CreateTime,
				Phase: protocol.Lost})
		}
	}
	return lost
}

func (s *startedAttempts) path(id string) string {
	return filepath.Join(s.dir, strings.NewReplacer("/", "_").Replace(id)+".json")
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
