package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"anneal/disk"
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
//
// The records are the lines of a file, to which the attempts of one heartbeat are appended with one
// fsync. A later line with the same attempt and the field forgotten removes a record.
type startedAttempts struct {
	path       string // of the file
	earlierDir string // directory in which earlier versions had a file for each record
	mu         sync.Mutex
	ids        map[string]record
	file       *os.File
	size       int64 // bytes of the file
	limit      int64 // size at which the file is rewritten without forgotten attempts
}

// minRewrite is the size in bytes below which the file of started attempts is not rewritten.
const minRewrite = 1 << 20

type record struct {
	Job        domain.Name `json:"job"`
	Attempt    int         `json:"attempt"`
	CreateTime time.Time   `json:"made"`
	Forgotten  bool        `json:"forgotten,omitempty"`
	current    bool        // started by this run of the agent
}

func (r record) id() string { return domain.AllocationID(r.Job, r.Attempt) }

// open reads the records of earlier runs.
func (s *startedAttempts) open() error {
	s.ids = map[string]record{}
	if err := s.readEarlier(); err != nil {
		return err
	}
	data, err := os.ReadFile(s.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for line := range bytes.Lines(data) {
		var r record
		if !bytes.HasSuffix(line, []byte("\n")) || json.Unmarshal(line, &r) != nil || r.Job == "" {
			continue // the agent crashed while it wrote the record, so the attempt was not started
		}
		if r.Forgotten {
			delete(s.ids, r.id())
		} else {
			s.ids[r.id()] = r
		}
	}
	if err := s.rewrite(); err != nil {
		return err
	}
	return os.RemoveAll(s.earlierDir)
}

// readEarlier reads the records of earlier versions.
func (s *startedAttempts) readEarlier() error {
	entries, err := os.ReadDir(s.earlierDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(s.earlierDir, entry.Name()))
		if err != nil {
			return err
		}
		var r record
		if json.Unmarshal(data, &r) == nil && r.Job != "" {
			s.ids[r.id()] = r
		}
	}
	return nil
}

// rewrite replaces the file by one with the current records, durably.
func (s *startedAttempts) rewrite() error {
	var lines []byte
	for _, id := range slices.Sorted(maps.Keys(s.ids)) {
		lines = appendRecord(lines, s.ids[id])
	}
	if err := disk.WriteFile(s.path, lines); err != nil {
		return err
	}
	file, err := os.OpenFile(s.path, os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if s.file != nil {
		_ = s.file.Close()
	}
	s.file, s.size = file, int64(len(lines))
	s.limit = max(minRewrite, 2*s.size)
	return nil
}

func appendRecord(lines []byte, r record) []byte {
	line, _ := json.Marshal(r) // never fails
	return append(append(lines, line...), '\n')
}

// add writes durable records that attempts are started.
func (s *startedAttempts) add(assignments ...protocol.TrainAssignment) error {
	if len(assignments) == 0 {
		return nil
	}
	var added []record
	var lines []byte
	for _, a := range assignments {
		r := record{Job: a.Job, Attempt: a.Attempt, CreateTime: a.CreateTime, current: true}
		added, lines = append(added, r), appendRecord(lines, r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size > s.limit {
		if err := s.rewrite(); err != nil {
			return err
		}
	}
	if err := s.append(lines); err != nil {
		return err
	}
	if err := disk.Fdatasync(s.file); err != nil {
		s.limit = -1 // rewrite the file: a repeated fdatasync would not report what was lost
		return err
	}
	for _, r := range added {
		s.ids[r.id()] = r
	}
	return nil
}

// append writes lines at the end of the file. Lines that it could not write completely are overwritten
// by the next ones.
func (s *startedAttempts) append(lines []byte) error {
	if _, err := s.file.WriteAt(lines, s.size); err != nil {
		return errors.Join(err, s.file.Truncate(s.size))
	}
	s.size += int64(len(lines))
	return nil
}

// forget removes the record of an attempt that the coordinator does not keep. If the removal does not
// reach the disk, the next run of the agent removes the record.
func (s *startedAttempts) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.ids[id]
	if !ok {
		return
	}
	delete(s.ids, id)
	r.Forgotten = true
	_ = s.append(appendRecord(nil, r))
}

// close closes the file.
func (s *startedAttempts) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		_ = s.file.Close()
		s.file = nil
	}
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
