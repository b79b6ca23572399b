// Package keyfile is a key-value store in two files, each synced before a change is acknowledged.
// An acknowledged change survives kill -9, a power failure at any moment, and damage to one of the
// files, which Open repairs from the other. The error of Open names the records that are damaged in
// both files.
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

// ErrConflict reports that the key has another revision than the caller expected, so that nothing
// was changed.
var ErrConflict = errors.New("keyfile: the key has another revision than the given one")

// ErrTooLarge reports that a key or a value exceeds the store's limits.
var ErrTooLarge = errors.New("keyfile: the key or the value is too large")

// ErrDamaged reports that a value became unreadable in both copies while the store was open.
var ErrDamaged = errors.New("keyfile: the value is damaged in both copies")

// Options configures a Store.
type Options struct {
	Wipe bool          // overwrite erased and replaced values with zeros
	Keep time.Duration // drop records this long after they were written; 0 keeps them
	// Exists reports that the store was created before, so that Open returns a LossError when both
	// files are missing.
	Exists bool
	// AcceptLoss opens a damaged store with its remaining records.
	AcceptLoss bool
	// BeforeLoss is called with the lost records, when their loss is accepted, before the copies
	// are rewritten without them. When BeforeLoss returns an error, Open fails and leaves the
	// copies unchanged.
	BeforeLoss func([]Lost) error
	// OnRepair is called with the reasons of a repair, and with the error of a failed compaction.
	OnRepair func(what string)
	Now      func() time.Time // nil is time.Now
}

// An entry is a live record.
type entry struct {
	record
	intact bool   // the value was valid in at least one copy when it was last read
	flawed string // name of the copy in which the value was damaged when it was last read
	batch  *batch // the batch that makes the record durable; nil once the record is durable
}

// A Store holds records by their keys. Its methods are safe for concurrent use.
type Store struct {
	disk disk
	path string
	opts Options
	lost []Lost

	mu          sync.Mutex
	entries     map[string]*entry // including those that are being written
	durable     map[string]*entry // only those on disk
	last        uint64            // the highest revision
	pending     *batch
	running     bool
	failed      error // first failed sync, returned by all later calls: fdatasync reports lost pages only once
	needsRepair bool  // a copy was found damaged
	writer      sync.WaitGroup

	files         sync.RWMutex // read-locked to read the files, locked to replace them
	copies        [copies]file
	header        header
	mark          mark
	garbage       int64 // bytes of records that are not live
	compactedSize int64 // size after the last compaction
	retrySize     int64 // a failed compaction is retried when the files reach this size
}

// Open opens the store in a directory. It creates the store if it does not exist, and repairs a
// damaged copy. No other process may have the store open.
func Open(path string, opts Options) (*Store, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("keyfile: %w", err)
	}
	if err := directory(filepath.Dir(path)).sync(); err != nil {
		return nil, fmt.Errorf("keyfile: %w", err)
	}
	accept := filepath.Join(path, acceptFile)
	if _, err := os.Stat(accept); err == nil {
		opts.AcceptLoss = true
	}
	s, err := open(directory(path), path, opts)
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
	if opts.OnRepair == nil {
		opts.OnRepair = func(string) {}
	}
	if opts.BeforeLoss == nil {
		opts.BeforeLoss = func([]Lost) error { return nil }
	}
	s := &Store{disk: d, path: path, opts: opts, pending: newBatch(), entries: map[string]*entry{},
		durable: map[string]*entry{}}
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
		if err := opts.BeforeLoss(s.lost); err != nil {
			return nil, err
		}
		return s, s.rewrite(nil)
	}
	r := merge(found, opts.Wipe)
	if r.unmarked {
		what, r.lost = "the marks of both copies are damaged, so it is not known how many records there were",
			append(r.lost, Lost{})
	}
	if len(r.lost) > 0 && !opts.AcceptLoss {
		found.close()
		return nil, &LossError{Dir: path, Lost: r.lost, What: what}
	}
	if len(r.lost) > 0 {
		if err := opts.BeforeLoss(r.lost); err != nil {
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
		s.compactedSize = int64(s.mark.end)
		return s, s.removeTemporary()
	}
	opts.OnRepair(strings.Join(r.reasons, "; "))
	err = s.rewrite(func(e *entry) ([]byte, error) { return r.found.value(r.header, e.record) })
	found.close()
	return s, err
}

// Lost returns the damaged records without which Open opened the store.
func (s *Store) Lost() []Lost { return s.lost }

// Get returns the value of a key and its revision; revision 0 when the key does not exist.
func (s *Store) Get(ctx context.Context, key string) ([]byte, uint64, error) {
	for {
		s.mu.Lock()
		e := s.entries[key]
		if e == nil || s.failed != nil {
			defer s.mu.Unlock()
			return nil, 0, s.failed
		}
		written, rec := e.batch, record{}
		if written == nil { // otherwise the record is being written and has no offset yet
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
		} // otherwise the record was replaced, erased or moved during the read
	}
}

// read reads the value of a record from a copy in which it is valid. The error is ErrDamaged when
// there is none.
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
			s.needsRepair = true // the copy is rewritten after the next write
			s.mu.Unlock()
		}
	}
	return nil, ErrDamaged
}

// Put sets the value of a key and returns the new revision. revision must be the current revision
// of the key, 0 for a new key; otherwise Put returns ErrConflict. The value is on disk, in both
// files, when Put returns.
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

// Erase removes keys. When it returns, their values are in neither file if Options.Wipe is set. A
// missing key is no error.
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
	if mine == nil && s.running { // wait for a concurrent call that may be erasing the keys
		mine = s.enqueue()
	}
	s.mu.Unlock()
	return mine.wait(ctx)
}

// Keys returns the keys that have a value, in ascending order.
func (s *Store) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.entries))
}

// An Info describes a record without its value.
type Info struct {
	Key      string
	Revision uint64
	Size     int
	Written  time.Time
}

// Infos returns the Info of each record that is on disk.
func (s *Store) Infos() []Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Info, 0, len(s.durable))
	for key, e := range s.durable {
		all = append(all, Info{key, e.revision, int(e.size), time.Unix(0, e.time)})
	}
	return all
}

// Close waits for pending writes and closes the files.
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
