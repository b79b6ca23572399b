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

// startedAttempts records on disk which attempts this agent has started, so that no attempt is
// started twice.
//
// An attempt that ran twice, before and after its agent was killed, could store two different
// checkpoints of the same step under one name. Only the agent knows which attempts it has started
// when the coordinator has lost its state. So the agent reports attempts that an earlier process
// started as lost, until the coordinator no longer assigns them. The coordinator requeues their
// jobs, whose next attempts resume from the last checkpoints.
//
// The records are lines of a file. The attempts of one heartbeat are appended with one fsync. A
// later line with the same attempt and the field forgotten removes a record.
type startedAttempts struct {
	path       string // path of the file with the records
	earlierDir string // directory in which earlier versions of anneal had a file for each record
	mu         sync.Mutex
	ids        map[string]record
	file       *os.File
	size       int64 // length of the file at path in bytes
	limit      int64 // length in bytes at which the file is rewritten without the removed records
}

// minRewrite is the length in bytes below which the file of started attempts is not rewritten.
const minRewrite = 1 << 20

type record struct {
	Job        domain.Name `json:"job"`
	Attempt    int         `json:"attempt"`
	CreateTime time.Time   `json:"made"`
	Forgotten  bool        `json:"forgotten,omitempty"`
	current    bool        // this process, not an earlier one, started the attempt
}

func (r record) id() string { return domain.AllocationID(r.Job, r.Attempt) }

// open reads the records of earlier processes from the file.
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
			continue // the agent crashed while it wrote this record, so it did not start the attempt
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

// readEarlier reads the records in the format of earlier versions of anneal.
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

// rewrite durably replaces the file by one that has only the current records.
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
	line, _ := json.Marshal(r) // Marshal returns no error: a record can always be encoded
	return append(append(lines, line...), '\n')
}

// add durably records that attempts are started.
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
		s.limit = -1 // rewrite the file, because a second fdatasync would not report what the first one lost
		return err
	}
	for _, r := range added {
		s.ids[r.id()] = r
	}
	return nil
}

// append writes lines at the end of the file. If that fails, the next call overwrites what was
// written.
func (s *startedAttempts) append(lines []byte) error {
	if _, err := s.file.WriteAt(lines, s.size); err != nil {
		return errors.Join(err, s.file.Truncate(s.size))
	}
	s.size += int64(len(lines))
	return nil
}

// forget removes the record of an attempt that the coordinator no longer assigns. A crash may undo
// that; the next process then removes the record.
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

// lost returns the attempts that earlier processes started, for the heartbeat to report as lost.
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
