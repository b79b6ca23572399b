// Package keyfile keeps records by their keys in two files, each synced before
// a change is acknowledged: what was acknowledged survives kill -9, a power
// failure at any moment, and damage to one of the files, from which the other
// one restores it. What is damaged in both is named when the store is opened.
package keyfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// ErrConflict means that the key has another revision: nothing was changed.
var ErrConflict = errors.New("keyfile: another revision came first")

// ErrTooLarge means that a key or a value exceeds the store's limits.
var ErrTooLarge = errors.New("keyfile: the key or the value is too large")

// ErrDamaged means that a value became unreadable in both copies while the
// store was open.
var ErrDamaged = errors.New("keyfile: the value is damaged in both copies")

// Options say how a store keeps its records.
type Options struct {
	Wipe bool          // overwrite values that are erased or replaced
	Keep time.Duration // drop records so long after they were written; 0 keeps them
	// Exists says that the store was made before: that it is missing is a loss.
	Exists bool
	// AcceptLoss opens a damaged store with what is left of it.
	AcceptLoss bool
	// Losing is told of a loss that is accepted before the copies are written
	// without it. Its error stops Open, and the copies stay as they are.
	Losing func([]Lost) error
	// Repaired is told what was repaired, and of a loss that was accepted.
	Repaired func(what string)
	Now      func() time.Time // nil is time.Now
}

// An entry is a live record.
type entry struct {
	record
	intact bool   // in one copy at least, when it was read
	flawed string // the copy in which it was damaged then
	batch  *batch // that will make it durable; nil once it is
}

// A Store holds records by their keys. Its methods may be called at the same time.
type Store struct {
	disk disk
	path string
	opts Options
	lost []Lost

	mu      sync.Mutex
	entries map[string]*entry // with what is being written
	durable map[string]*entry // without
	last    uint64            // revision
	pending *batch
	running bool
	failed  error // kept: after a failed fdatasync the kernel reports lost pages as clean
	mend    bool  // a copy was found damaged
	writer  sync.WaitGroup

	files   sync.RWMutex // held to read them, and to replace them
	copies  [copies]file
	header  header
	mark    mark
	garbage int64 // bytes of records that are not live
	settled int64 // size after the last compaction
	resting int64 // size below which compaction is not tried again
}

// Open opens the store in a folder, makes it when it is missing, and repairs
// a copy that is damaged. Nobody else may have it open.
func Open(path string, opts Options) (*Store, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("keyfile: %w", err)
	}
	if err := folder(filepath.Dir(path)).sync(); err != nil {
		return nil, fmt.Errorf("keyfile: %w", err)
	}
	accept := filepath.Join(path, acceptFile)
	if _, err := os.Stat(accept); err == nil {
		opts.AcceptLoss = true
	}
	s, err := open(folder(path), path, opts)
	if err != nil {
		return nil, err
	}
	_ = os.Remove(accept)
	return s, nil
}

func open(d disk, path string, opts Options) (*Store, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Repaired == nil {
		opts.Repaired = func(string) {}
	}
	if opts.Losing == nil {
		opts.Losing = func([]Lost) error { return nil }
	}
	s := &Store{disk: d, path: path, opts: opts, pending: newBatch(), entries: map[string]*entry{}, durable: map[string]*entry{}}
	found, err := find(d)
	if err != nil {
		return nil, err
	}
	what := ""
	switch missing := found[0].file == nil && found[1].file == nil; {
	case missing && opts.Exists:
		what = "both copies are missing"
	case missing:
		return s, s.rewrite(nil)
	case !found[0].headed && !found[1].headed:
		what = "the headers of both copies are damaged or missing"
	}
	if what != "" {
		found.close()
		s.lost = []Lost{{}}
		if loss := (&LossError{Dir: path, What: what}); !opts.AcceptLoss {
			return nil, loss
		}
		if err := opts.Losing(s.lost); err != nil {
			return nil, err
		}
		return s, s.rewrite(nil)
	}
	r := merge(found, opts.Wipe)
	if r.unmarked {
		what, r.lost = "the marks of both copies are damaged, so it is not known how many records there were", append(r.lost, Lost{})
	}
	if len(r.lost) > 0 && !opts.AcceptLoss {
		found.close()
		return nil, &LossError{Dir: path, Lost: r.lost, What: what}
	}
	if len(r.lost) > 0 {
		if err := opts.Losing(r.lost); err != nil {
			found.close()
			return nil, err
		}
	}
	s.lost, s.last, s.header, s.mark, s.garbage = r.lost, r.mark.revision, r.header, r.mark, r.garbage
	for key, e := range r.live {
		s.entries[key], s.durable[key] = e, e
		if e.flawed != "" {
			r.repair("values in " + e.flawed + " are damaged")
		}
	}
	if len(r.reasons) == 0 && len(r.lost) == 0 {
		s.copies = [copies]file{found[0].file, found[1].file}
		s.settled = int64(s.mark.end)
		return s, s.removeTemporary()
	}
	opts.Repaired(strings.Join(r.reasons, "; "))
	err = s.rewrite(func(e *entry) ([]byte, error) { return r.found.value(r.header, e.record) })
	found.close()
	return s, err
}

// Lost is what was lost when the store was opened nevertheless.
func (s *Store) Lost() []Lost { return s.lost }

// Get is the value of a key and its revision; 0 when there is none.
func (s *Store) Get(ctx context.Context, key string) ([]byte, uint64, error) {
	for {
		s.mu.Lock()
		e := s.entries[key]
		if e == nil || s.failed != nil {
			defer s.mu.Unlock()
			return nil, 0, s.failed
		}
		written, rec := e.batch, record{}
		if written == nil { // otherwise it is being written
			rec = e.record
		}
		s.mu.Unlock()
		if written != nil {
			if err := written.wait(ctx); err != nil {
				return nil, 0, err
			}
			continue
		}
		value, err := s.read(rec)
		if err == nil {
			return value, rec.revision, nil
		}
		s.mu.Lock()
		now := s.entries[key]
		same := now != nil && now.record == rec
		s.mu.Unlock()
		if same {
			return nil, 0, err
		} // else it was replaced, erased or moved meanwhile
	}
}

// read reads a value from whichever copy has it whole.
func (s *Store) read(rec record) ([]byte, error) {
	s.files.RLock()
	defer s.files.RUnlock()
	for i, f := range s.copies {
		value, ok := readValue(f, s.header, rec)
		if ok {
			return value, nil
		}
		if i == 0 {
			s.mu.Lock()
			s.mend = true // by the next write
			s.mu.Unlock()
		}
	}
	return nil, ErrDamaged
}

// Put sets the value of a key whose revision is still the one given, 0 for a
// new key, and answers the new revision; otherwise ErrConflict. It is on disk,
// twice, when Put returns.
func (s *Store) Put(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	if len(key) > maxKey || len(value) > maxValueSize {
		return 0, ErrTooLarge
	}
	s.mu.Lock()
	before := s.entries[key]
	if s.failed != nil || (before == nil && revision != 0) || (before != nil && before.revision != revision) {
		defer s.mu.Unlock()
		return 0, cmp.Or(s.failed, ErrConflict)
	}
	s.last++
	e := &entry{record: record{kind: kindPut, key: key, revision: s.last, time: s.opts.Now().UnixNano()}, intact: true}
	s.entries[key] = e
	e.batch = s.enqueue(&op{kind: kindPut, entry: e, before: before, value: value})
	mine, number := e.batch, e.revision
	s.mu.Unlock()
	return number, mine.wait(ctx)
}

// Erase takes keys away for good: once it returns they are in neither copy.
// A key that is missing is no error.
func (s *Store) Erase(ctx context.Context, keys ...string) error {
	s.mu.Lock()
	if s.failed != nil {
		defer s.mu.Unlock()
		return s.failed
	}
	mine := (*batch)(nil)
	for _, key := range keys {
		e := s.entries[key]
		if e == nil {
			continue
		}
		delete(s.entries, key)
		s.last++
		mark := &entry{record: record{kind: kindErase, key: key, revision: s.last, time: s.opts.Now().UnixNano()}}
		mine = s.enqueue(&op{kind: kindErase, entry: mark, before: e})
	}
	if mine == nil && s.running { // somebody else may be erasing them just now
		mine = s.enqueue()
	}
	s.mu.Unlock()
	return mine.wait(ctx)
}

// Keys are the keys that have a value, in order.
func (s *Store) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.entries))
}

// An Info is what is known of a record without its value.
type Info struct {
	Key      string
	Revision uint64
	Size     int
	Written  time.Time
}

// Infos are the records that are on disk.
func (s *Store) Infos() []Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Info, 0, len(s.durable))
	for key, e := range s.durable {
		all = append(all, Info{key, e.revision, int(e.size), time.Unix(0, e.time)})
	}
	return all
}

// Close waits for what is being written and closes the files.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.failed == nil {
		s.failed = errClosed
	}
	s.mu.Unlock()
	s.writer.Wait()
	s.files.Lock()
	defer s.files.Unlock()
	var all error
	for i, f := range s.copies {
		if f != nil {
			all = errors.Join(all, f.Close())
		}
		s.copies[i] = closedFile{}
	}
	return all
}
